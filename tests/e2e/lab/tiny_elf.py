"""Three static x86-64 programs of a few dozen bytes, so that test images need no compiler and no packages.

`pause_program` sleeps for ever. `witness_program` reports, as the very first thing it does, the CPUs it may run on:
its first instructions are the system call that asks the kernel, so no CPU it could not keep goes unseen.
`hoard_program` takes huge pages, one for each of its arguments, and keeps them.
"""

import struct

_BASE = 0x400000
_ELF_HEADER, _PROGRAM_HEADER = 64, 56
_CODE_AT = _BASE + _ELF_HEADER + _PROGRAM_HEADER
_PAUSE_FOR_EVER = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"  # mov eax, 34 (pause); syscall; jmp back
_SYSCALL = b"\x0f\x05"
_MASK_BYTES = 1024  # 8,192 CPUs, the most a kernel can be built for


def pause_program() -> bytes:
    """A program that does nothing until it is killed."""
    return _program(_PAUSE_FOR_EVER)


def witness_program(path: str) -> bytes:
    """A program that writes the affinity mask of its first instruction to the file `path`, then sleeps for ever.

    The file holds the kernel's mask as it is: bit n of byte n // 8 is CPU n.
    """
    # sched_getaffinity(0, 1024, rsp - 1024): the answer in rax is the number of bytes that count
    ask = b"\xb8\xcc\x00\x00\x00" + b"\x31\xff" + b"\xbe" + struct.pack("<I", _MASK_BYTES)
    ask += b"\x48\x8d\x94\x24" + struct.pack("<i", -_MASK_BYTES) + _SYSCALL + b"\x49\x89\xc4"  # mov r12, rax
    # open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644): `path` follows the code
    open_head = b"\xb8\x02\x00\x00\x00" + b"\x48\xbf"  # mov eax, 2; mov rdi, imm64
    open_tail = b"\xbe" + struct.pack("<I", 0o1101) + b"\xba" + struct.pack("<I", 0o644) + _SYSCALL
    # then write that many bytes of the mask to the file just opened
    tell = b"\x89\xc7" + b"\x48\x8d\xb4\x24" + struct.pack("<i", -_MASK_BYTES)
    tell += b"\x4c\x89\xe2" + b"\xb8\x01\x00\x00\x00" + _SYSCALL
    size = len(ask) + len(open_head) + 8 + len(open_tail) + len(tell) + len(_PAUSE_FOR_EVER)
    address = struct.pack("<Q", _CODE_AT + size)
    return _program(ask + open_head + address + open_tail + tell + _PAUSE_FOR_EVER + path.encode() + b"\0")


def hoard_program() -> bytes:
    """A program that maps and writes as many 2 MiB pages as it has arguments, then sleeps; without pages it crashes."""
    code = b"\x4c\x8b\x24\x24" + b"\x49\xff\xcc"  # mov r12, [rsp]; dec r12
    # the system call mmap for r12 anonymous, private, writable pages of 2 MiB each
    code += b"\x4c\x89\xe6" + b"\x48\xc1\xe6\x15" + b"\x31\xff" + b"\xba" + struct.pack("<I", 3)
    code += b"\x41\xba" + struct.pack("<I", 0x40022) + b"\x49\xc7\xc0" + struct.pack("<i", -1)
    code += b"\x45\x31\xc9" + b"\xb8" + struct.pack("<I", 9) + _SYSCALL
    write = b"\xc6\x00\x01" + b"\x48\x05" + struct.pack("<I", 1 << 21) + b"\x49\xff\xcc"  # [rax] = 1; next
    code += b"\x4d\x85\xe4\x74" + bytes([len(write) + 2]) + write  # while r12 != 0
    return _program(code + b"\xeb" + bytes([256 - len(write) - 7]) + _PAUSE_FOR_EVER)


def _program(code: bytes) -> bytes:
    size = _ELF_HEADER + _PROGRAM_HEADER + len(code)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little endian, version 1
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, _CODE_AT, _ELF_HEADER, 0, 0, _ELF_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0
    )
    segment = struct.pack(
        "<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000
    )  # one segment: read and execute
    return ident + header + segment + code
