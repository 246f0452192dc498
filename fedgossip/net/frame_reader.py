"""Read one message from a socket, a mark and a body and no other frame, and give it to its sender's assembler."""

from __future__ import annotations

import zmq

from fedgossip.messages import AnyMessage
from fedgossip.net.sockets import ZmqSocket
from fedgossip.wire import Assembler, FrameError


def read(socket: ZmqSocket, mark: zmq.Frame, assembler: Assembler) -> AnyMessage | None:
    """Take the body that belongs to `mark`; return the message that is whole with it.

    Raises FrameError; `skip` then takes what is left of it.
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


def frame_error(error: Exception, assembler: Assembler | None) -> FrameError:
    """Return the refusal of one frame that could not be taken, whatever it is in it that cannot be; what it belongs to
    is dropped.  Raises what is no fault of a frame.
    """
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
    """Read the frames that are left of a message, and drop them."""
    while _more(socket):
        socket.recv_into(bytearray())


def _more(socket: ZmqSocket) -> bool:
    return bool(socket.getsockopt(zmq.RCVMORE))  # not .rcvmore: the attribute costs ten times as much
