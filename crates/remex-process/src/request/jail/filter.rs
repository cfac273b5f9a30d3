//! The system calls that a confined process may not make, as a program for the kernel's filter.
//!
//! A second layer behind the namespaces: it refuses calls that have often been used to escape from them, and calls that
//! they do not cover. Refused calls fail with `EPERM`; a call of another architecture kills a confined process, because
//! its numbers mean something else. Start at [`Filter`].

mod landlock_only;

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

/// What the filter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Only calls that would hide a process from a kill, or make it a child of the server.
    Pids,
    /// All calls that could break the confinement; the network is that of the host.
    Confined,
    /// As [`Confined`](Self::Confined), and sockets other than those for the loopback device of the jail's own network.
    Offline,
}

/// A compiled filter.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    program: Vec<sock_filter>,
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The 32-bit architecture whose programs the same kernel runs: i386 or ARM.
#[cfg(target_arch = "x86_64")]
const SMALL_ARCHITECTURE: u32 = 0x4000_0003;
#[cfg(target_arch = "aarch64")]
const SMALL_ARCHITECTURE: u32 = 0x4000_0028;

/// The bit that distinguishes the calls of the x32 architecture, whose numbers are otherwise the usual ones.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// The numbers of the system calls of one architecture that would hide a process from a kill.
#[derive(Clone, Copy)]
struct Numbers {
    clone: c_long,
    clone3: c_long,
    prlimit64: c_long,
}

const NUMBERS: Numbers =
    Numbers { clone: libc::SYS_clone, clone3: libc::SYS_clone3, prlimit64: libc::SYS_prlimit64 };

#[cfg(target_arch = "x86_64")]
const SMALL_NUMBERS: Numbers = Numbers { clone: 120, clone3: 435, prlimit64: 340 };
#[cfg(target_arch = "aarch64")]
const SMALL_NUMBERS: Numbers = Numbers { clone: 120, clone3: 435, prlimit64: 369 };

/// Refused with `EPERM` whatever the arguments.
const DENIED: &[c_long] = &[
    // Other views of the file system.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // Memory and descriptors of other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Large and often broken parts of the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Keys belong to a user, not to a namespace.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The host itself.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

const SYS_OPEN_TREE_ATTR: c_long = 467;

/// Everything that makes a namespace, except for time, whose bit is part of the exit signal in `clone`.
const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

const CLONE_NEWTIME: u32 = 0x80;

/// Bytes typed into a terminal by a program, and the virtual console.
const DENIED_IOCTLS: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];

/// Leases and delegations, which a process can take on files that it may only read: until they are released, other
/// processes cannot open the file.
const DENIED_FCNTLS: [u32; 2] = [libc::F_SETLEASE.cast_unsigned(), F_SETDELEG];

const F_SETDELEG: u32 = 1040;

/// The usual execution domain, and the number that only asks for the current one.
const PERSONALITIES: [u32; 2] = [0, u32::MAX];

/// Routes and addresses of the jail's own network namespace, which `getaddrinfo` queries.
const NETLINK_ROUTE: u32 = 0;

impl Filter {
    pub(crate) fn new(strictness: Strictness) -> Self {
        let mut filter = Cases::default();
        if strictness != Strictness::Pids {
            for number in DENIED {
                filter.on(*number, &[errno(libc::EPERM)]);
            }
            filter.on_flags(libc::SYS_unshare, NEW_NAMESPACES.cast_unsigned() | CLONE_NEWTIME);
            filter.on_argument(libc::SYS_ioctl, 1, &DENIED_IOCTLS, Listed::Denied);
            filter.on_argument(libc::SYS_fcntl, 1, &DENIED_FCNTLS, Listed::Denied);
            filter.on_argument(libc::SYS_personality, 0, &PERSONALITIES, Listed::Allowed);
            filter.on_socketpair(strictness);
            filter.on_socket(strictness);
        }
        filter.on_clone(NUMBERS, if strictness == Strictness::Pids { 0 } else { NEW_NAMESPACES });
        filter.on_init(NUMBERS);
        let mut program =
            if strictness == Strictness::Pids { admit_architectures() } else { check_architecture() };
        program.extend(filter.search());
        Self { program }
    }

    pub(crate) fn program(&self) -> &[sock_filter] {
        &self.program
    }
}

/// Kills the process for a call by another architecture, and loads the number of the call.
fn check_architecture() -> Vec<sock_filter> {
    let mut program = vec![load(4), jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0), KILL, load(0)];
    #[cfg(target_arch = "x86_64")]
    program.extend([jump(libc::BPF_JGE, X32, 0, 1), KILL]);
    program
}

/// Decides about the calls of 32-bit programs as for a mere pid namespace, and loads the number of any other.
fn admit_architectures() -> Vec<sock_filter> {
    let mut small = Cases::default();
    small.on_clone(SMALL_NUMBERS, 0);
    small.on_init(SMALL_NUMBERS);
    let mut others = vec![jump(libc::BPF_JEQ, SMALL_ARCHITECTURE, 1, 0), KILL, load(0)];
    others.extend(small.search());
    let offset = u8::try_from(others.len()).expect("three cases are short");
    let mut program = vec![load(4), jump(libc::BPF_JEQ, ARCHITECTURE, offset, 0)];
    program.extend(others);
    program.push(load(0));
    #[cfg(target_arch = "x86_64")]
    program.push(and(!X32));
    program
}

/// What to do about system calls, by their numbers.
#[derive(Default)]
struct Cases(BTreeMap<u32, Vec<sock_filter>>);

impl Cases {
    /// Runs `body`, which must return, for one system call.
    fn on(&mut self, number: c_long, body: &[sock_filter]) {
        self.0.insert(number as u32, body.to_vec());
    }

    /// Returns a program that finds the case of a number; other calls are allowed.
    ///
    /// The kernel runs it for every number there is when it is installed, so a binary search saves much of a start.
    fn search(self) -> Vec<sock_filter> {
        let cases: Vec<_> = self.0.into_iter().collect();
        search(&cases)
    }

    /// Refuses a system call whose first argument has one of these flags.
    fn on_flags(&mut self, number: c_long, flags: u32) {
        self.on(number, &[argument(0), jump(libc::BPF_JSET, flags, 0, 1), errno(libc::EPERM), ALLOW]);
    }

    /// Refuses new processes with one of these flags, and those that would be children of the server: it would not know
    /// them and never reap them, and the first process of the jail could not exit.
    fn on_clone(&mut self, numbers: Numbers, flags: i32) {
        self.on_flags(numbers.clone, (flags | libc::CLONE_PARENT).cast_unsigned());
        // Its flags are in memory, which a filter cannot read; libraries fall back to `clone`.
        self.on(numbers.clone3, &[errno(libc::ENOSYS)]);
    }

    /// Refuses calls that change the first process, whose tag a kill relies on.
    fn on_init(&mut self, numbers: Numbers) {
        self.on_argument(numbers.prlimit64, 0, &[1], Listed::Denied);
    }

    /// Decides by whether an argument is listed.
    fn on_argument(&mut self, number: c_long, index: u32, listed: &[u32], meaning: Listed) {
        let (yes, no) = match meaning {
            Listed::Allowed => (ALLOW, errno(libc::EPERM)),
            Listed::Denied => (errno(libc::EPERM), ALLOW),
        };
        let mut body = vec![argument(index)];
        for value in listed {
            body.extend([jump(libc::BPF_JEQ, *value, 0, 1), yes]);
        }
        body.push(no);
        self.on(number, &body);
    }

    /// Allows only pairs of unix sockets, and without a network only those that stay pairs: a datagram socket can be
    /// connected to another address later, and so lead to any service of the host, or to another jail.
    fn on_socketpair(&mut self, strictness: Strictness) {
        /// The part of a type without flags; `SOCK_RAW` means datagrams.
        const TYPE: u32 = 0xf;
        let mut body =
            vec![argument(0), jump(libc::BPF_JEQ, libc::AF_UNIX.cast_unsigned(), 1, 0), errno(libc::EPERM)];
        if strictness == Strictness::Offline {
            body.extend([argument(1), and(TYPE)]);
            for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
                body.extend([jump(libc::BPF_JEQ, kind.cast_unsigned(), 0, 1), ALLOW]);
            }
            body.push(errno(libc::EPERM));
        } else {
            body.push(ALLOW);
        }
        self.on(libc::SYS_socketpair, &body);
    }

    /// Allows only the families that programs need.
    ///
    /// Without a network, not even unix sockets: those in the file system may lead to any service of the host.
    fn on_socket(&mut self, strictness: Strictness) {
        let mut body = vec![argument(0)];
        let mut allowed = vec![libc::AF_INET, libc::AF_INET6];
        if strictness != Strictness::Offline {
            allowed.push(libc::AF_UNIX);
        }
        for family in allowed {
            body.extend([jump(libc::BPF_JEQ, family.cast_unsigned(), 0, 1), ALLOW]);
        }
        body.extend([
            jump(libc::BPF_JEQ, libc::AF_NETLINK.cast_unsigned(), 0, 3),
            argument(2),
            jump(libc::BPF_JEQ, NETLINK_ROUTE, 0, 1),
            ALLOW,
            errno(libc::EPERM),
        ]);
        self.on(libc::SYS_socket, &body);
    }
}

fn search(cases: &[(u32, Vec<sock_filter>)]) -> Vec<sock_filter> {
    match cases {
        [] => vec![ALLOW],
        [(number, body)] => {
            let offset = u8::try_from(body.len()).expect("the body of a case is short");
            let mut program = vec![jump(libc::BPF_JEQ, *number, 0, offset)];
            program.extend_from_slice(body);
            program.push(ALLOW);
            program
        }
        _ => {
            let (lower, upper) = cases.split_at(cases.len() / 2);
            let lower = search(lower);
            let first = upper[0].0;
            let mut program = match u8::try_from(lower.len()) {
                Ok(offset) => vec![jump(libc::BPF_JGE, first, offset, 0)],
                Err(_) => vec![jump(libc::BPF_JGE, first, 0, 1), skip(lower.len() as u32)],
            };
            program.extend(lower);
            program.extend(search(upper));
            program
        }
    }
}

/// Whether the values in a list are allowed or denied.
#[derive(Clone, Copy)]
enum Listed {
    Allowed,
    Denied,
}

const ALLOW: sock_filter = ret(libc::SECCOMP_RET_ALLOW);
const KILL: sock_filter = ret(libc::SECCOMP_RET_KILL_PROCESS);

fn errno(number: i32) -> sock_filter {
    ret(libc::SECCOMP_RET_ERRNO | number.cast_unsigned())
}

const fn ret(value: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: value }
}

/// Loads a word of the description of the call.
fn load(offset: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Loads the lower half of an argument; the kernel ignores the upper half of all those that are compared.
fn argument(index: u32) -> sock_filter {
    /// Where the arguments are, after the number, the architecture and the instruction pointer.
    const ARGUMENTS: u32 = 16;
    load(ARGUMENTS + 8 * index)
}

/// Keeps these bits of what was loaded.
fn and(bits: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, jt: 0, jf: 0, k: bits }
}

/// Jumps further than a condition can.
fn skip(offset: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | libc::BPF_JA) as u16, jt: 0, jf: 0, k: offset }
}

fn jump(condition: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    sock_filter {
        code: (libc::BPF_JMP | condition | libc::BPF_K) as u16,
        jt: if_true,
        jf: if_false,
        k: value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel does.
    pub(super) fn decide(filter: &Filter, architecture: u32, number: c_long, arguments: [u64; 3]) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = filter.program[at];
            at += 1;
            let code = u32::from(code);
            if code == libc::BPF_RET | libc::BPF_K {
                return k;
            }
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                accumulator = match k {
                    0 => number as u32,
                    4 => architecture,
                    k => arguments[(k as usize - 16) / 8] as u32,
                };
                continue;
            }
            if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K {
                accumulator &= k;
                continue;
            }
            if code == libc::BPF_JMP | libc::BPF_JA {
                at += k as usize;
                continue;
            }
            let holds = match code & 0xf0 {
                libc::BPF_JEQ => accumulator == k,
                libc::BPF_JGE => accumulator >= k,
                libc::BPF_JSET => accumulator & k != 0,
                other => panic!("unknown jump {other:#x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    pub(super) const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    pub(super) const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    pub(super) const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    #[test]
    fn calls_are_refused_by_number_and_by_argument() {
        let filter = Filter::new(Strictness::Offline);
        let of = |number, first| decide(&filter, ARCHITECTURE, number, [first, 0, 0]);
        assert_eq!(of(libc::SYS_mount, 0), EPERM);
        assert_eq!(of(libc::SYS_io_uring_setup, 0), EPERM);
        assert_eq!(of(libc::SYS_clone3, 0), ENOSYS);
        assert_eq!(of(libc::SYS_read, 0), ALLOWED);
        assert_eq!(of(libc::SYS_clone, libc::SIGCHLD as u64), ALLOWED);
        assert_eq!(of(libc::SYS_clone, (libc::CLONE_NEWUSER | libc::SIGCHLD) as u64), EPERM);
        assert_eq!(of(libc::SYS_clone, (libc::CLONE_PARENT | libc::SIGCHLD) as u64), EPERM);
        assert_eq!(of(libc::SYS_unshare, libc::CLONE_FILES as u64), ALLOWED);
        assert_eq!(of(libc::SYS_unshare, u64::from(CLONE_NEWTIME)), EPERM);
        assert_eq!(of(libc::SYS_personality, 0), ALLOWED);
        assert_eq!(of(libc::SYS_personality, 8), EPERM);
        assert_eq!(of(libc::SYS_prlimit64, 0), ALLOWED);
        assert_eq!(of(libc::SYS_prlimit64, 1), EPERM);
        // The kernel ignores the upper half, and so must the filter.
        assert_eq!(of(libc::SYS_prlimit64, 1 << 32 | 1), EPERM);
        let ioctl = |request: u64| decide(&filter, ARCHITECTURE, libc::SYS_ioctl, [0, request, 0]);
        assert_eq!(ioctl(0x5413), ALLOWED);
        assert_eq!(ioctl(0x5412), EPERM);
        assert_eq!(ioctl(1 << 32 | 0x541c), EPERM);
        let fcntl = |command: u64| decide(&filter, ARCHITECTURE, libc::SYS_fcntl, [0, command, 0]);
        assert_eq!((fcntl(1024), fcntl(1040), fcntl(1025), fcntl(1030)), (EPERM, EPERM, ALLOWED, ALLOWED));
    }

    #[test]
    fn every_listed_call_is_found_and_no_other() {
        let filter = Filter::new(Strictness::Offline);
        let refused = |number: &c_long| decide(&filter, ARCHITECTURE, *number, [0; 3]) != ALLOWED;
        let mut expected = [DENIED, &[libc::SYS_clone3, libc::SYS_socket, libc::SYS_socketpair]].concat();
        expected.sort_unstable();
        assert_eq!((0..1024).filter(refused).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn sockets_are_allowed_by_family() {
        for (strictness, unix) in [(Strictness::Offline, EPERM), (Strictness::Confined, ALLOWED)] {
            let filter = Filter::new(strictness);
            let socket = |family: i32, protocol| {
                decide(&filter, ARCHITECTURE, libc::SYS_socket, [family as u64, 0, protocol])
            };
            assert_eq!(socket(libc::AF_UNIX, 0), unix);
            assert_eq!(socket(libc::AF_INET, 0), ALLOWED);
            assert_eq!(socket(libc::AF_INET6, 0), ALLOWED);
            assert_eq!(socket(libc::AF_NETLINK, 0), ALLOWED);
            assert_eq!(socket(libc::AF_NETLINK, 9), EPERM);
            for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH] {
                assert_eq!(socket(family, 0), EPERM);
            }
            let pair = |family: i32, kind: i32| {
                decide(&filter, ARCHITECTURE, libc::SYS_socketpair, [family as u64, kind as u64, 0])
            };
            for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC] {
                assert_eq!((pair(libc::AF_UNIX, kind), pair(libc::AF_TIPC, kind)), (ALLOWED, EPERM));
            }
            for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC] {
                assert_eq!(pair(libc::AF_UNIX, kind), unix);
            }
        }
    }

    #[test]
    fn another_architecture_is_killed_in_a_sandbox() {
        let killed = libc::SECCOMP_RET_KILL_PROCESS;
        for filter in
            [Filter::new(Strictness::Confined), Filter::new(Strictness::Offline), Filter::landlock_only()]
        {
            assert_eq!(decide(&filter, SMALL_ARCHITECTURE, 3, [0; 3]), killed);
            #[cfg(target_arch = "x86_64")]
            assert_eq!(decide(&filter, ARCHITECTURE, c_long::from(X32) | libc::SYS_read, [0; 3]), killed);
        }
    }

    #[test]
    fn without_a_sandbox_32_bit_programs_run_and_are_refused_the_same() {
        let filter = Filter::new(Strictness::Pids);
        let of = |architecture, numbers: Numbers, bit: c_long| {
            let of = |number: c_long, first: i32| {
                decide(&filter, architecture, number | bit, [first as u64, 0, 0])
            };
            for number in (0..512).filter(|number| *number != numbers.clone3) {
                assert_eq!(of(number, 0), ALLOWED, "{number}");
            }
            assert_eq!(of(numbers.clone, libc::CLONE_PARENT | libc::SIGCHLD), EPERM);
            assert_eq!(of(numbers.clone3, 0), ENOSYS);
            assert_eq!(of(numbers.prlimit64, 1), EPERM);
        };
        of(ARCHITECTURE, NUMBERS, 0);
        of(SMALL_ARCHITECTURE, SMALL_NUMBERS, 0);
        #[cfg(target_arch = "x86_64")]
        of(ARCHITECTURE, NUMBERS, X32.into());
        let unknown = 0x8000_0008;
        assert_eq!(decide(&filter, unknown, 0, [0; 3]), libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn without_a_sandbox_only_the_first_process_and_the_server_are_protected() {
        let filter = Filter::new(Strictness::Pids);
        let of = |number, first| decide(&filter, ARCHITECTURE, number, [first, 0, 0]);
        assert_eq!(of(libc::SYS_ptrace, 0), ALLOWED);
        assert_eq!(of(libc::SYS_clone, (libc::CLONE_NEWUSER | libc::SIGCHLD) as u64), ALLOWED);
        assert_eq!(of(libc::SYS_clone, (libc::CLONE_PARENT | libc::SIGCHLD) as u64), EPERM);
        assert_eq!(of(libc::SYS_clone3, 0), ENOSYS);
        assert_eq!(of(libc::SYS_prlimit64, 1), EPERM);
    }
}
