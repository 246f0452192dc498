"""All that a machine's network card sees of TCP, stream by stream:  python sniffing.py FOLDER

A file per direction of a connection holds its payload as it came; who may read the wire learns that much.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

ALL_PROTOCOLS = 0x0003  # linux/if_ether.h: ETH_P_ALL
IPV4, TCP, ETHERNET = b"\x08\x00", 6, 14


def payload_of(frame: bytes) -> tuple[str, bytes] | None:
    """Return the name of the stream that a frame of Ethernet belongs to, and its bytes; None for what is no TCP."""
    if frame[12:14] != IPV4 or frame[ETHERNET + 9] != TCP:
        return None
    packet = frame[ETHERNET : ETHERNET + int.from_bytes(frame[ETHERNET + 2 : ETHERNET + 4], "big")]
    segment = packet[4 * (packet[0] & 15) :]
    ends = [socket.inet_ntoa(packet[12:16]), segment[0:2].hex(), socket.inet_ntoa(packet[16:20]), segment[2:4].hex()]
    return "-".join(ends), segment[4 * (segment[12] >> 4) :]


def sniff(folder: Path) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(ALL_PROTOCOLS)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        print("sniffing", flush=True)
        while True:
            if (found := payload_of(wire.recv(1 << 17))) and found[1]:
                with (folder / found[0]).open("ab") as stream:
                    stream.write(found[1])


if __name__ == "__main__":
    sniff(Path(sys.argv[1]))
