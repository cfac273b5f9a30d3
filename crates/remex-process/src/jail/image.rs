//! The program of the first process of a jail, in machine code: it needs no library, and no file on the host.
//!
//! It reads one byte from descriptor 0. At the end of file it exits at once, and the kernel kills everything in its pid
//! namespace. A byte says that the command has ended: then it waits until it has no children, and exits. Signals are of
//! no concern to it: the first process of a namespace ignores all that it does not handle, and with SIGCHLD ignored the
//! kernel reaps its children.

/// An ELF file.
pub(crate) const INIT: [u8; HEADERS_LEN + CODE.len()] = image();

const HEADERS_LEN: usize = 64 + 56;
const ADDRESS: u64 = 0x40_0000;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "x86_64")]
const CODE: [u8; 54] = [
    0x31, 0xc0, //                         xor eax, eax           read
    0x31, 0xff, //                         xor edi, edi           0
    0x48, 0x89, 0xe6, //                   mov rsi, rsp           to the stack
    0xba, 0x01, 0x00, 0x00, 0x00, //       mov edx, 1             one byte
    0x0f, 0x05, //                         syscall
    0x83, 0xf8, 0x01, //                   cmp eax, 1
    0x75, 0x1a, //                         jne end
    0xb8, 0x3d, 0x00, 0x00, 0x00, // wait: mov eax, 61            wait4
    0xbf, 0xff, 0xff, 0xff, 0xff, //       mov edi, -1            any child
    0x31, 0xf6, //                         xor esi, esi           no status
    0xba, 0x00, 0x00, 0x00, 0x40, //       mov edx, __WALL
    0x45, 0x31, 0xd2, //                   xor r10d, r10d         no usage
    0x0f, 0x05, //                         syscall
    0x85, 0xc0, //                         test eax, eax
    0x79, 0xe6, //                         jns wait
    0xb8, 0xe7, 0x00, 0x00, 0x00, // end:  mov eax, 231           exit_group
    0x31, 0xff, //                         xor edi, edi           0
    0x0f, 0x05, //                         syscall
];

#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(target_arch = "aarch64")]
const CODE: [u8; 68] = bytes([
    0xd280_07e8, //       mov x8, 63             read
    0xd280_0000, //       mov x0, 0              0
    0x9100_03e1, //       mov x1, sp             to the stack
    0xd280_0022, //       mov x2, 1              one byte
    0xd400_0001, //       svc 0
    0xf100_041f, //       cmp x0, 1
    0x5400_0101, //       b.ne end
    0xd280_2088, // wait: mov x8, 260            wait4
    0x9280_0000, //       mov x0, -1             any child
    0xd280_0001, //       mov x1, 0              no status
    0xd2a8_0002, //       mov x2, __WALL
    0xd280_0003, //       mov x3, 0              no usage
    0xd400_0001, //       svc 0
    0xb6ff_ff40, //       tbz x0, 63, wait
    0xd280_0bc8, // end:  mov x8, 94             exit_group
    0xd280_0000, //       mov x0, 0              0
    0xd400_0001, //       svc 0
]);

#[cfg(target_arch = "aarch64")]
const fn bytes(instructions: [u32; 17]) -> [u8; 68] {
    let mut bytes = [0; 68];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = instructions[at / 4].to_le_bytes()[at % 4];
        at += 1;
    }
    bytes
}

const fn image() -> [u8; HEADERS_LEN + CODE.len()] {
    let len = (HEADERS_LEN + CODE.len()) as u64;
    let mut image = [0; HEADERS_LEN + CODE.len()];
    // 64 bits, little endian, version 1.
    put(&mut image, 0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    // An executable for this machine, version 1.
    put(&mut image, 16, &[2, 0]);
    put(&mut image, 18, &MACHINE.to_le_bytes());
    put(&mut image, 20, &[1]);
    // The entry, and where the program headers are.
    put(&mut image, 24, &(ADDRESS + HEADERS_LEN as u64).to_le_bytes());
    put(&mut image, 32, &[64]);
    // The lengths of this header and of a program header, of which there is one.
    put(&mut image, 52, &[64, 0, 56, 0, 1]);
    // Load the whole file, to be read and executed.
    put(&mut image, 64, &[1, 0, 0, 0, 5]);
    put(&mut image, 80, &ADDRESS.to_le_bytes());
    put(&mut image, 88, &ADDRESS.to_le_bytes());
    put(&mut image, 96, &len.to_le_bytes());
    put(&mut image, 104, &len.to_le_bytes());
    // Aligned to the largest page size.
    put(&mut image, 112, &0x1_0000_u64.to_le_bytes());
    put(&mut image, HEADERS_LEN, &CODE);
    image
}

const fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    let mut index = 0;
    while index < bytes.len() {
        image[at + index] = bytes[index];
        index += 1;
    }
}
