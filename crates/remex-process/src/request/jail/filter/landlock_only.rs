//! The filter for a process that no namespace confines.
//!
//! Here it does not back up namespaces but confines by itself: it refuses every call by which a process could change
//! files that it may only read, reach other processes of the same user, or communicate, unless Landlock prevents that.

use libc::c_long;

use super::{
    ALLOW, Cases, DENIED, DENIED_FCNTLS, DENIED_IOCTLS, Filter, Listed, NEW_NAMESPACES, NUMBERS,
    PERSONALITIES, Strictness, and, argument, check_architecture, errno, jump,
};

/// Calls from here on are newer than this filter, and fail with `ENOSYS`.
const FIRST_UNKNOWN: u32 = 470;

/// Refused with `EPERM` whatever the arguments, in addition to the calls refused to every confined process.
const DENIED_LANDLOCK_ONLY: &[c_long] = &[
    // Landlock does not confine the attributes of files.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SYS_SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    // The network of the host, and unix sockets, which may lead to any service of it.
    libc::SYS_socket,
    // A pair needs none of these, and would have a name on the host by the first.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Memory, semaphores and queues that processes of the same user share.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Memory of other processes.
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
];

const SYS_FCHMODAT2: c_long = 452;
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;
const SYS_FILE_SETATTR: c_long = 469;

/// Calls whose first argument is a process; zero is the caller.
const OWN_PROCESS_ONLY: [c_long; 5] = [
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

/// The commands of terminals and those for every descriptor have this type.
const TERMINAL_COMMANDS: u32 = 0x5400;
const COMMAND_TYPE: u32 = 0xff00;

/// Commands that only query a file. Others may change it although it is open for reading only.
const FILE_COMMANDS: [u32; 4] = [
    // FIGETBSZ, FS_IOC_FIEMAP, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR
    0x0000_0002,
    0xc020_660b,
    0x8008_6601,
    0x801c_581f,
];

impl Filter {
    /// Returns the filter for a process without namespaces, which may write nothing and has no network.
    pub(crate) fn landlock_only() -> Self {
        let mut filter = Cases::default();
        for number in DENIED.iter().chain(DENIED_LANDLOCK_ONLY) {
            filter.on(*number, &[errno(libc::EPERM)]);
        }
        filter.on_clone(NUMBERS, NEW_NAMESPACES);
        filter.on_flags(libc::SYS_unshare, NEW_NAMESPACES.cast_unsigned() | super::CLONE_NEWTIME);
        filter.on_argument(libc::SYS_fcntl, 1, &DENIED_FCNTLS, Listed::Denied);
        filter.on_argument(libc::SYS_personality, 0, &PERSONALITIES, Listed::Allowed);
        filter.on_socketpair(Strictness::Offline);
        for number in OWN_PROCESS_ONLY {
            filter.on_argument(number, 0, &[0], Listed::Allowed);
        }
        filter.on_priority(libc::SYS_setpriority, PRIO_PROCESS);
        filter.on_priority(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS);
        filter.on_command();
        let mut program = check_architecture();
        program.extend([jump(libc::BPF_JGE, FIRST_UNKNOWN, 0, 1), errno(libc::ENOSYS)]);
        program.extend(filter.search());
        Self { program }
    }
}

const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;

impl Cases {
    /// Allows a change of priority for the caller only.
    fn on_priority(&mut self, number: c_long, process: u32) {
        let body = [
            argument(0),
            jump(libc::BPF_JEQ, process, 1, 0),
            errno(libc::EPERM),
            argument(1),
            jump(libc::BPF_JEQ, 0, 1, 0),
            errno(libc::EPERM),
            ALLOW,
        ];
        self.on(number, &body);
    }

    /// Allows only commands that change no file.
    fn on_command(&mut self) {
        let mut body = vec![argument(1)];
        for command in DENIED_IOCTLS {
            body.extend([jump(libc::BPF_JEQ, command, 0, 1), errno(libc::EPERM)]);
        }
        for command in FILE_COMMANDS {
            body.extend([jump(libc::BPF_JEQ, command, 0, 1), ALLOW]);
        }
        body.extend([
            and(COMMAND_TYPE),
            jump(libc::BPF_JEQ, TERMINAL_COMMANDS, 0, 1),
            ALLOW,
            errno(libc::EPERM),
        ]);
        self.on(libc::SYS_ioctl, &body);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            ARCHITECTURE,
            tests::{ALLOWED, ENOSYS, EPERM, decide},
        },
        *,
    };

    #[test]
    fn without_namespaces_the_filter_refuses_changing_files_and_reaching_other_processes() {
        let filter = Filter::landlock_only();
        let of = |number, arguments| decide(&filter, ARCHITECTURE, number, arguments);
        for number in [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_fcntl, libc::SYS_kill] {
            assert_eq!(of(number, [0; 3]), ALLOWED, "{number}");
        }
        for number in DENIED.iter().chain(DENIED_LANDLOCK_ONLY) {
            assert_eq!(of(*number, [0; 3]), EPERM, "{number}");
        }
        for command in DENIED_FCNTLS {
            assert_eq!(of(libc::SYS_fcntl, [0, command.into(), 0]), EPERM);
        }
        for flag in [libc::CLONE_PARENT, libc::CLONE_NEWUSER] {
            assert_eq!(of(libc::SYS_clone, [(flag | libc::SIGCHLD) as u64, 0, 0]), EPERM);
        }
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK] {
            assert_eq!(of(libc::SYS_socket, [family as u64, 0, 0]), EPERM);
        }
        let pair = |kind: i32| of(libc::SYS_socketpair, [libc::AF_UNIX as u64, kind as u64, 0]);
        assert_eq!((pair(libc::SOCK_STREAM), pair(libc::SOCK_DGRAM)), (ALLOWED, EPERM));
        for number in OWN_PROCESS_ONLY {
            assert_eq!((of(number, [0, 7, 7]), of(number, [7, 0, 0])), (ALLOWED, EPERM), "{number}");
        }
        let priority = |which, who| of(libc::SYS_setpriority, [which, who, 0]);
        assert_eq!((priority(0, 0), priority(0, 7), priority(2, 0)), (ALLOWED, EPERM, EPERM));
        assert_eq!(
            (of(libc::SYS_ioprio_set, [1, 0, 0]), of(libc::SYS_ioprio_set, [3, 0, 0])),
            (ALLOWED, EPERM)
        );
        assert_eq!(of(FIRST_UNKNOWN.into(), [0; 3]), ENOSYS);
        assert_eq!(of(1000, [0; 3]), ENOSYS);
    }

    #[test]
    fn without_namespaces_the_filter_allows_terminal_and_read_only_commands() {
        // TCGETS, TIOCGWINSZ, FIONREAD and FIOCLEX, then TIOCSTI and TIOCLINUX.
        const TERMINAL: [u64; 4] = [0x5401, 0x5413, 0x541b, 0x5451];
        const TYPING: [u64; 2] = [0x5412, 0x541c];
        const ENABLE_VERITY: u64 = 0x4080_6685;
        const SET_FLAGS: u64 = 0x4008_6602;
        let filter = Filter::landlock_only();
        let of = |command: u64| decide(&filter, ARCHITECTURE, libc::SYS_ioctl, [0, command, 0]);
        for command in TERMINAL {
            assert_eq!(of(command), ALLOWED, "{command:#x}");
        }
        assert_eq!(of(FILE_COMMANDS[1].into()), ALLOWED);
        for command in [TYPING[0], TYPING[1], ENABLE_VERITY, SET_FLAGS, 0x5000_940e] {
            assert_eq!(of(command), EPERM, "{command:#x}");
        }
    }
}
