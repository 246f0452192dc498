"""Read one message from a socket, a mark and a body and no other frame, and pass it to its sender's assembler.

Or one sealed record of a stream, which is equivalent.
"""

from __future__ import annotations

import zmq

from fedgossip.core.messages import AnyMessage
from fedgossip.core.wire import Assembler, FrameError
from fedgossip.net.sockets import ZmqSocket
from fedgossip.net.streams.sealed_stream import SealedStream
from fedgossip.net.streams.sealing import SealBrokenError


def read(socket: ZmqSocket, mark: zmq.Frame, assembler: Assembler) -> AnyMessage | None:
    """Read the body that belongs to `mark`; return the message that is complete with it.

    Raises FrameError; `skip` then drops the rest of it.
    """
    if not mark.more:
        raise FrameError("truncated", "a message of one frame")
    target = assembler.mark(mark.bytes)
    if target is None:
        body = socket.recv()
        check_last(socket)
        return assembler.header(body)
    size = socket.recv_into(target)
    check_last(socket)
    return assembler.landed(size)


def read_sealed(stream: SealedStream, assembler: Assembler) -> AnyMessage | None:
    """Open the record that is whole, a chunk into its place; return the message that is whole with it.

    Raises SealBrokenError, after which the stream is to be closed, and FrameError for a frame that is the sender's own
    and cannot be accepted.  The mark is believed before the seal is looked at only so far as to find the place: where
    the seal is broken, all that the message has is dropped.
    """
    try:
        target = assembler.mark(stream.mark)
        if target is not None and stream.size == len(target):
            return assembler.landed(stream.open_into(target))
    except SealBrokenError:
        assembler.give_up()
        raise
    except FrameError:
        stream.open()
        raise
    size, body = stream.size, bytes(stream.open())
    return assembler.header(body) if target is None else assembler.landed(size)


def frame_error(error: Exception, assembler: Assembler | None) -> FrameError:
    """Return the refusal of one invalid frame; its message is dropped.  Raises other errors than those of a frame."""
    if isinstance(error, FrameError):
        return error
    if isinstance(error, zmq.ZMQError):
        raise error
    if assembler is not None:
        assembler.give_up()
    return FrameError("broken", f"a frame that cannot be taken: {type(error).__name__}: {error}")


def check_last(socket: ZmqSocket) -> None:
    """Raise FrameError where another frame follows."""
    if _more(socket):
        raise FrameError("frames", "a message of more than two frames")


def skip(socket: ZmqSocket) -> None:
    """Read the remaining frames of a message, and drop them."""
    while _more(socket):
        socket.recv_into(bytearray())


def _more(socket: ZmqSocket) -> bool:
    return bool(socket.getsockopt(zmq.RCVMORE))  # not .rcvmore: the attribute costs ten times as much
