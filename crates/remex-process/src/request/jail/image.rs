//! The programs of two processes as machine code, which need no library and no file on the host.
//!
//! The first process of a jail reads one byte from descriptor 0. At the end of file it exits at once, and the kernel
//! kills everything in its pid namespace. A byte says that the command has ended: then it waits until it has no
//! children, and exits. Signals are of no concern to it: the first process of a namespace ignores all that it does not
//! handle, and with SIGCHLD ignored the kernel reaps its children.
//!
//! The janitor waits until descriptor 0, the pidfd of the first process, is readable. Then it takes each argument but
//! the first for the name of a directory: for argument `n`, descriptor `2n` is the directory, and `2n - 1` the one
//! above. It waits until no other process holds a lock on the directory, and removes it if it still has its name and is
//! empty. It closes the directory before it continues: janitors that wait for each other's locks would wait forever.

/// The program of the first process, an ELF file.
pub(crate) const INIT: [u8; HEADERS_LEN + CODE.len()] = image(&CODE);

/// The program of the janitor, an ELF file.
pub(crate) const JANITOR: [u8; HEADERS_LEN + JANITOR_CODE.len()] = image(&JANITOR_CODE);

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

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const JANITOR_CODE: [u8; 214] = [
    0x48, 0x89, 0xe5,                                //       mov rbp,rsp
    0x48, 0x81, 0xec, 0x00, 0x02, 0x00, 0x00,        //       sub rsp,0x200
    0xb8, 0x01, 0x00, 0x00, 0x00,                    // wait: mov eax,0x1
    0x48, 0xc1, 0xe0, 0x20,                          //       shl rax,0x20
    0x48, 0x89, 0x04, 0x24,                          //       mov [rsp],rax
    0xb8, 0x07, 0x00, 0x00, 0x00,                    //       mov eax,0x7
    0x48, 0x89, 0xe7,                                //       mov rdi,rsp
    0xbe, 0x01, 0x00, 0x00, 0x00,                    //       mov esi,0x1
    0xba, 0xff, 0xff, 0xff, 0xff,                    //       mov edx,0xffffffff
    0x0f, 0x05,                                      //       syscall
    0x83, 0xf8, 0x01,                                //       cmp eax,0x1
    0x75, 0xda,                                      //       jne wait
    0xbb, 0x01, 0x00, 0x00, 0x00,                    //       mov ebx,0x1
    0x48, 0x3b, 0x5d, 0x00,                          // next: cmp rbx,[rbp+0x0]
    0x0f, 0x8d, 0x8e, 0x00, 0x00, 0x00,              //       jge end
    0x48, 0x8d, 0x3c, 0x1b,                          //       lea rdi,[rbx+rbx]
    0xbe, 0x02, 0x00, 0x00, 0x00,                    //       mov esi,0x2
    0xb8, 0x49, 0x00, 0x00, 0x00,                    //       mov eax,0x49
    0x0f, 0x05,                                      //       syscall
    0x85, 0xc0,                                      //       test eax,eax
    0x75, 0x68,                                      //       jne skip
    0x48, 0x8d, 0x3c, 0x1b,                          //       lea rdi,[rbx+rbx]
    0x48, 0x89, 0xe6,                                //       mov rsi,rsp
    0xb8, 0x05, 0x00, 0x00, 0x00,                    //       mov eax,0x5
    0x0f, 0x05,                                      //       syscall
    0x85, 0xc0,                                      //       test eax,eax
    0x75, 0x56,                                      //       jne skip
    0x48, 0x8d, 0x7c, 0x1b, 0xff,                    //       lea rdi,[rbx+rbx-0x1]
    0x48, 0x8b, 0x74, 0xdd, 0x08,                    //       mov rsi,[rbp+rbx*8+0x8]
    0x48, 0x8d, 0x94, 0x24, 0x00, 0x01, 0x00, 0x00,  //       lea rdx,[rsp+0x100]
    0x41, 0xba, 0x00, 0x01, 0x00, 0x00,              //       mov r10d,0x100
    0xb8, 0x06, 0x01, 0x00, 0x00,                    //       mov eax,0x106
    0x0f, 0x05,                                      //       syscall
    0x85, 0xc0,                                      //       test eax,eax
    0x75, 0x33,                                      //       jne skip
    0x48, 0x8b, 0x04, 0x24,                          //       mov rax,[rsp]
    0x48, 0x3b, 0x84, 0x24, 0x00, 0x01, 0x00, 0x00,  //       cmp rax,[rsp+0x100]
    0x75, 0x25,                                      //       jne skip
    0x48, 0x8b, 0x44, 0x24, 0x08,                    //       mov rax,[rsp+0x8]
    0x48, 0x3b, 0x84, 0x24, 0x08, 0x01, 0x00, 0x00,  //       cmp rax,[rsp+0x108]
    0x75, 0x16,                                      //       jne skip
    0x48, 0x8d, 0x7c, 0x1b, 0xff,                    //       lea rdi,[rbx+rbx-0x1]
    0x48, 0x8b, 0x74, 0xdd, 0x08,                    //       mov rsi,[rbp+rbx*8+0x8]
    0xba, 0x00, 0x02, 0x00, 0x00,                    //       mov edx,0x200
    0xb8, 0x07, 0x01, 0x00, 0x00,                    //       mov eax,0x107
    0x0f, 0x05,                                      //       syscall
    0x48, 0x8d, 0x3c, 0x1b,                          // skip: lea rdi,[rbx+rbx]
    0xb8, 0x03, 0x00, 0x00, 0x00,                    //       mov eax,0x3
    0x0f, 0x05,                                      //       syscall
    0xff, 0xc3,                                      //       inc ebx
    0xe9, 0x68, 0xff, 0xff, 0xff,                    //       jmp next
    0xb8, 0xe7, 0x00, 0x00, 0x00,                    // end:  mov eax,0xe7
    0x31, 0xff,                                      //       xor edi,edi
    0x0f, 0x05,                                      //       syscall
];

#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
const JANITOR_CODE: [u8; 228] = bytes([
    0x9100_03f3, //       mov x19, sp
    0xd108_03ff, //       sub sp, sp, 512
    0xd2c0_0020, // wait: mov x0, 4294967296
    0xf900_03e0, //       str x0, [sp]
    0xd280_0928, //       mov x8, 73
    0x9100_03e0, //       mov x0, sp
    0xd280_0021, //       mov x1, 1
    0xd280_0002, //       mov x2, 0
    0xd280_0003, //       mov x3, 0
    0xd280_0104, //       mov x4, 8
    0xd400_0001, //       svc 0
    0xf100_041f, //       cmp x0, 1
    0x54ff_fec1, //       b.ne wait
    0xd280_0034, //       mov x20, 1
    0xf940_0260, // next: ldr x0, [x19]
    0xeb00_029f, //       cmp x20, x0
    0x5400_04ca, //       b.ge end
    0xd37f_fa95, //       lsl x21, x20, 1
    0xd100_06b6, //       sub x22, x21, 1
    0xaa15_03e0, //       mov x0, x21
    0xd280_0041, //       mov x1, 2
    0xd280_0408, //       mov x8, 32
    0xd400_0001, //       svc 0
    0xb500_0340, //       cbnz x0, skip
    0xaa15_03e0, //       mov x0, x21
    0x9100_03e1, //       mov x1, sp
    0xd280_0a08, //       mov x8, 80
    0xd400_0001, //       svc 0
    0xb500_02a0, //       cbnz x0, skip
    0x9100_2277, //       add x23, x19, 8
    0xf874_7af7, //       ldr x23, [x23, x20, lsl 3]
    0xaa16_03e0, //       mov x0, x22
    0xaa17_03e1, //       mov x1, x23
    0x9104_03e2, //       add x2, sp, 256
    0xd280_2003, //       mov x3, 256
    0xd280_09e8, //       mov x8, 79
    0xd400_0001, //       svc 0
    0xb500_0180, //       cbnz x0, skip
    0xa940_07e0, //       ldp x0, x1, [sp]
    0xa950_0fe2, //       ldp x2, x3, [sp, 256]
    0xeb02_001f, //       cmp x0, x2
    0x5400_0101, //       b.ne skip
    0xeb03_003f, //       cmp x1, x3
    0x5400_00c1, //       b.ne skip
    0xaa16_03e0, //       mov x0, x22
    0xaa17_03e1, //       mov x1, x23
    0xd280_4002, //       mov x2, 512
    0xd280_0468, //       mov x8, 35
    0xd400_0001, //       svc 0
    0xaa15_03e0, // skip: mov x0, x21
    0xd280_0728, //       mov x8, 57
    0xd400_0001, //       svc 0
    0x9100_0694, //       add x20, x20, 1
    0x17ff_ffd9, //       b next
    0xd280_0bc8, // end:  mov x8, 94
    0xd280_0000, //       mov x0, 0
    0xd400_0001, //       svc 0
]);

#[cfg(target_arch = "aarch64")]
const fn bytes<const WORDS: usize, const LEN: usize>(instructions: [u32; WORDS]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = instructions[at / 4].to_le_bytes()[at % 4];
        at += 1;
    }
    bytes
}

const fn image<const LEN: usize>(code: &[u8]) -> [u8; LEN] {
    let len = LEN as u64;
    let mut image = [0; LEN];
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
    put(&mut image, HEADERS_LEN, code);
    image
}

const fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    let mut index = 0;
    while index < bytes.len() {
        image[at + index] = bytes[index];
        index += 1;
    }
}
