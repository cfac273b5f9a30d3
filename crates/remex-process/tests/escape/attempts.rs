//! The attempts, as the confined program makes them.

use std::{
    ffi::{CStr, CString, c_long, c_void},
    fs::{self, OpenOptions, Permissions},
    io::{self, Read as _},
    net::{TcpListener, TcpStream, UdpSocket},
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{OpenOptionsExt as _, PermissionsExt as _, symlink},
            net::{SocketAddr, UnixStream},
        },
    },
    path::Path,
    process::Command,
    ptr,
    time::Duration,
};

use remex_process::{JailMechanism, JailSupport};

pub(crate) type Attempts = Vec<(String, io::Result<()>)>;

fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).unwrap()
}

fn append(path: impl AsRef<Path>) -> io::Result<()> {
    OpenOptions::new().append(true).open(path).map(drop)
}

/// In `base`, everything but `hidden` can be read; in a jail of namespaces, `w` is writable except for `.git`.
pub(crate) fn files(base: &Path, mechanism: JailMechanism) -> Attempts {
    let (w, out) = (base.join("w"), base.join("out"));
    let file = out.join("file");
    fs::read(&file).expect("what is outside can be read");
    fs::read_dir("/").expect("directories can be listed");
    let mut places =
        vec![("outside", out.clone(), file.clone()), ("protected", w.join(".git"), w.join(".git/config"))];
    match mechanism {
        JailMechanism::Namespaces => fs::write(w.join("mine"), "mine").expect("the workspace can be written"),
        JailMechanism::Landlock => places.push(("in the workspace", w.clone(), w.join("mine"))),
    }
    let has_landlock = JailSupport::probe().landlock.is_some();
    let mut attempts: Attempts = Vec::new();
    for (place, directory, file) in places {
        let mut add = |what: &str, result: io::Result<()>| attempts.push((format!("{what} {place}"), result));
        add("write", append(&file));
        add("create", fs::write(directory.join("new"), ""));
        add("make a directory", fs::create_dir(directory.join("new")));
        add("make a link", symlink("x", directory.join("new")));
        // A process outside reads it, or this would fail for another reason. Read-only mounts do not stop it, and
        // rights by Landlock add up, so a named pipe in a protected directory of a writable one can be written to.
        if place != "protected" && has_landlock || mechanism == JailMechanism::Landlock {
            let mut pipe = OpenOptions::new();
            pipe.write(true).custom_flags(libc::O_NONBLOCK);
            add("write to a named pipe", pipe.open(directory.join("fifo")).map(drop));
        }
        add("truncate", OpenOptions::new().write(true).truncate(true).open(&file).map(drop));
        for (what, flag, name) in [
            ("truncate a file that is read", libc::O_TRUNC, &file),
            ("create a file to read", libc::O_CREAT, &directory.join("new")),
        ] {
            // SAFETY: the path ends with NUL.
            let opened = unsafe { libc::open(c(name).as_ptr(), libc::O_RDONLY | flag, 0o600) };
            add(what, check(opened.into()));
        }
        // SAFETY: the path ends with NUL.
        add("truncate by path", check(unsafe { libc::truncate(c(&file).as_ptr(), 0) }.into()));
        add("rename out", fs::rename(w.join("mine"), directory.join("new")));
        add("rename in", fs::rename(&file, w.join("stolen")));
        add("rename the directory", fs::rename(&directory, w.join("aside")));
        add("link into the workspace", fs::hard_link(&file, w.join("hard")));
        add("link out of the workspace", fs::hard_link(w.join("mine"), directory.join("hard")));
        add("remove", fs::remove_file(&file));
        add("remove all", fs::remove_dir_all(&directory));
        add("change the mode", fs::set_permissions(&file, Permissions::from_mode(0o777)));
        add("change the owner", std::os::unix::fs::chown(&file, Some(0), None));
        // SAFETY: all paths and names end with NUL.
        unsafe {
            let path = c(&file);
            add(
                "change the times",
                check(libc::utimensat(libc::AT_FDCWD, path.as_ptr(), ptr::null(), 0).into()),
            );
            let (name, value) = (c"user.x".as_ptr(), c"1".as_ptr().cast());
            let flags = 0_i32;
            let open = fs::File::open(&file).unwrap();
            add("set flags", check(libc::ioctl(open.as_raw_fd(), 0x4008_6602, &raw const flags).into()));
            // It would hold up everybody else who writes.
            let leased = libc::fcntl(open.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK);
            add("take a lease", check(leased.into()));
            add("change the mode by descriptor", check(libc::fchmod(open.as_raw_fd(), 0o777).into()));
            add("set an attribute", check(libc::setxattr(path.as_ptr(), name, value, 1, 0).into()));
            let both = (libc::AT_FDCWD, path.as_ptr(), libc::AT_FDCWD, c(w.join("mine")));
            let exchange = libc::RENAME_EXCHANGE;
            let exchanged =
                libc::syscall(libc::SYS_renameat2, both.0, both.1, both.2, both.3.as_ptr(), exchange);
            add("exchange", check(exchanged));
        }
    }
    let mut add = |what: &str, result: io::Result<()>| attempts.push((what.to_owned(), result));
    add("write through a link", append(w.join("to-file")));
    add("write through a link to a directory", append(w.join("to-out/file")));
    add("write through `..`", append(w.join("sub/../../out/file")));
    add(
        "write through the root of another process",
        append(Path::new("/proc/1/root").join(file.strip_prefix("/").unwrap())),
    );
    add(
        "write through the own root",
        append(Path::new("/proc/self/root").join(file.strip_prefix("/").unwrap())),
    );
    // A file that is open for reading stays read-only when it is opened again.
    let open = fs::File::open(&file).unwrap();
    add("write through a descriptor", append(format!("/proc/self/fd/{}", open.as_raw_fd())));
    add("rename the workspace", fs::rename(&w, base.join("elsewhere")));
    for (kind, device) in [("character", libc::S_IFCHR), ("block", libc::S_IFBLK)] {
        // SAFETY: the path ends with NUL.
        let made = check(
            unsafe { libc::mknod(c(w.join("device")).as_ptr(), device | 0o666, libc::makedev(1, 1)) }.into(),
        );
        add(&format!("make a {kind} device"), made);
    }
    for device in ["/dev/full", "/dev/null", "/dev/tty"] {
        add(&format!("change {device}"), fs::set_permissions(device, Permissions::from_mode(0o666)));
    }
    append("/dev/null").expect("devices can be written to");
    let input = fs::File::open("/proc/self/fd/0").and_then(|input| input.metadata());
    let is_device =
        input.is_ok_and(|input| std::os::unix::fs::FileTypeExt::is_char_device(&input.file_type()));
    let refused = || io::Error::other("it is a pipe");
    add("hold a device of the host", if is_device { Ok(()) } else { Err(refused()) });
    add("see what is hidden", fs::read(base.join("hidden/secret")).map(drop));
    if mechanism == JailMechanism::Namespaces {
        add("list what is hidden", fs::read_dir(base.join("hidden")).map(drop));
    }
    add("replace what is hidden", fs::rename(base.join("hidden"), base.join("seen")));
    attempts
}

pub(crate) fn kernel() -> Attempts {
    let mut attempts: Attempts = Vec::new();
    for name in
        ["kcore", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "slabinfo", "timer_list", "vmallocinfo"]
    {
        let path = format!("/proc/{name}");
        let read = fs::File::open(&path).and_then(|mut file| file.read_exact(&mut [0; 8]));
        attempts.push((format!("read {path}"), read));
    }
    if rustix::process::geteuid().is_root() {
        // Names can be seen where Landlock is the only mechanism.
        attempts.push(("read in /sys/firmware".to_owned(), read_something(Path::new("/sys/firmware"))));
    }
    let mut call = |name: &str, number: c_long, arguments: [*const c_void; 5]| {
        let [a, b, c, d, e] = arguments;
        // SAFETY: the pointers are null or to strings with NUL, and every call is refused before it uses them.
        let result = check(unsafe { libc::syscall(number, a, b, c, d, e) });
        attempts.push((name.to_owned(), result));
    };
    let number = |number: c_long| number as *const c_void;
    let text = |text: &'static CStr| text.as_ptr().cast::<c_void>();
    let none = ptr::null();
    let at = number(libc::AT_FDCWD.into());
    let rw = number((libc::MS_REMOUNT | libc::MS_BIND) as c_long);
    let namespaces = [
        ("user", libc::CLONE_NEWUSER),
        ("mount", libc::CLONE_NEWNS),
        ("pid", libc::CLONE_NEWPID),
        ("network", libc::CLONE_NEWNET),
        ("uts", libc::CLONE_NEWUTS),
        ("ipc", libc::CLONE_NEWIPC),
        ("cgroup", libc::CLONE_NEWCGROUP),
        ("time", 0x80),
    ];
    for (name, flag) in namespaces {
        call(&format!("unshare {name}"), libc::SYS_unshare, [number(flag.into()), none, none, none, none]);
        if flag != 0x80 {
            let flags = number((flag | libc::SIGCHLD).into());
            call(
                &format!("clone into a new {name} namespace"),
                libc::SYS_clone,
                [flags, none, none, none, none],
            );
        }
    }
    call("mount", libc::SYS_mount, [text(c"x"), text(c"/mnt"), text(c"tmpfs"), none, none]);
    call("remount", libc::SYS_mount, [none, text(c"/"), none, rw, none]);
    call("unmount", libc::SYS_umount2, [text(c"/proc"), number(libc::MNT_DETACH.into()), none, none, none]);
    call("pivot_root", libc::SYS_pivot_root, [text(c"/"), text(c"/"), none, none, none]);
    call("chroot", libc::SYS_chroot, [text(c"/tmp"), none, none, none, none]);
    call("open_tree", libc::SYS_open_tree, [at, text(c"/"), number(1), none, none]);
    call("fsopen", libc::SYS_fsopen, [text(c"tmpfs"), none, none, none, none]);
    call("fspick", libc::SYS_fspick, [at, text(c"/"), none, none, none]);
    call("mount_setattr", libc::SYS_mount_setattr, [at, text(c"/"), none, none, none]);
    call("move_mount", libc::SYS_move_mount, [at, text(c"/tmp"), at, text(c"/mnt"), none]);
    call("setns", libc::SYS_setns, [none; 5]);
    call("open_by_handle_at", libc::SYS_open_by_handle_at, [at, none, none, none, none]);
    call("name_to_handle_at", libc::SYS_name_to_handle_at, [at, text(c"/"), none, none, none]);
    call("io_uring", libc::SYS_io_uring_setup, [number(1), none, none, none, none]);
    call("bpf", libc::SYS_bpf, [none; 5]);
    call("perf_event_open", libc::SYS_perf_event_open, [none; 5]);
    call("userfaultfd", libc::SYS_userfaultfd, [number(1), none, none, none, none]);
    call("keyctl", libc::SYS_keyctl, [none, number(-3), none, none, none]);
    call("add_key", libc::SYS_add_key, [text(c"user"), text(c"x"), text(c"y"), number(1), number(-4)]);
    call("request_key", libc::SYS_request_key, [text(c"user"), text(c"x"), none, none, none]);
    call("kexec_load", libc::SYS_kexec_load, [none; 5]);
    call("init_module", libc::SYS_init_module, [none; 5]);
    call("finit_module", libc::SYS_finit_module, [none; 5]);
    call("reboot", libc::SYS_reboot, [none; 5]);
    call("swapon", libc::SYS_swapon, [text(c"/x"), none, none, none, none]);
    call("acct", libc::SYS_acct, [none; 5]);
    call("syslog", libc::SYS_syslog, [number(10), none, none, none, none]);
    call("quotactl", libc::SYS_quotactl, [none; 5]);
    call("personality", libc::SYS_personality, [number(0x40_0000), none, none, none, none]);
    attempts.extend(siblings());
    let mut add = |what: &str, result: io::Result<()>| attempts.push((what.to_owned(), result));
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
        "/proc/1/oom_score_adj",
        "/proc/self/uid_map",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/fuse",
        "/dev/vda",
        "/dev/loop-control",
    ] {
        add(&format!("write `{path}`"), append(path));
    }
    for path in ["/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/port"] {
        add(&format!("read `{path}`"), fs::File::open(path).map(drop));
    }
    attempts
}

/// Makes processes that would be children of the server.
pub(crate) fn siblings() -> Attempts {
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
    // Begins with the flags; the signal is inherited.
    let arguments = [libc::CLONE_PARENT as u64, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: without a stack and shared memory this is a fork, and the new process only exits.
    let made = |number: c_long, first: u64, second: usize| unsafe {
        let pid = libc::syscall(number, first, second, 0, 0, 0);
        if pid == 0 {
            libc::_exit(0);
        }
        check(pid)
    };
    vec![
        ("clone a child of the server".to_owned(), made(libc::SYS_clone, flags, 0)),
        (
            "clone3 a child of the server".to_owned(),
            made(libc::SYS_clone3, arguments.as_ptr() as u64, size_of_val(&arguments)),
        ),
    ]
}

/// What a process with nothing but pids of its own may not do either.
pub(crate) fn pids() -> Attempts {
    let mut attempts = siblings();
    // SAFETY: nothing is read or written.
    let asked = unsafe { libc::prlimit(1, libc::RLIMIT_LOCKS, ptr::null(), ptr::null_mut()) };
    attempts.push(("reach the tag of the first process".to_owned(), check(asked.into())));
    attempts
}

/// The same by the system calls of 32-bit programs.
#[cfg(target_arch = "x86_64")]
pub(crate) fn small_pids() -> Attempts {
    const GETPID: u32 = 20;
    const CLONE: u32 = 120;
    const PRLIMIT64: u32 = 340;
    const CLONE3: u32 = 435;
    let call = |number: u32, first: u64, second: u64| {
        let result: i32;
        // SAFETY: no memory is involved, and a new process is a copy that only exits.
        unsafe {
            std::arch::asm!(
                // The compiler reserves the register of the first argument.
                "xchg rbx, rdi",
                "int 0x80",
                "xchg rbx, rdi",
                inlateout("eax") number => result, inlateout("rdi") first => _, in("rcx") second, in("rdx") 0,
                in("rsi") 0, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
            if result == 0 && number != PRLIMIT64 {
                libc::_exit(0);
            }
        }
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    };
    call(GETPID, 0, 0).expect("32-bit programs run");
    let siblings = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
    let mut attempts = vec![
        ("clone a child of the server by a 32-bit call".to_owned(), call(CLONE, siblings, 0)),
        (
            "reach the tag of the first process by a 32-bit call".to_owned(),
            call(PRLIMIT64, 1, libc::RLIMIT_LOCKS.into()),
        ),
    ];
    let missing = call(CLONE3, 0, 0).err().and_then(|error| error.raw_os_error()) == Some(libc::ENOSYS);
    let refused = if missing { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) };
    attempts.push(("clone3 by a 32-bit call".to_owned(), refused));
    attempts
}

pub(crate) fn processes(server: &str, mechanism: JailMechanism) -> Attempts {
    let mut attempts: Attempts = Vec::new();
    let mut add = |what: &str, result: io::Result<()>| attempts.push((what.to_owned(), result));
    let open: Vec<_> =
        fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // The three streams, and the directory itself.
    add("inherit descriptors", if open.len() == 4 { Err(io::Error::other("none")) } else { Ok(()) });
    let server: i32 = server.parse().unwrap();
    // SAFETY: no memory is involved, or it is local.
    unsafe {
        add("signal the server", check(libc::kill(server, 0).into()));
        if mechanism == JailMechanism::Namespaces {
            // Only processes of the jail are reached, and there is none but this and the first.
            add("signal everything", check(libc::kill(-1, libc::SIGKILL).into()));
        }
        add(
            "change the priority of the server",
            check(libc::setpriority(0, server.cast_unsigned(), 19).into()),
        );
        let (processors, len) = ([u64::MAX; 16], 128);
        let moved = libc::syscall(libc::SYS_sched_setaffinity, server, len, processors.as_ptr());
        add("move the server to another processor", check(moved));
        let files = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
        let limited = libc::prlimit(server, libc::RLIMIT_NOFILE, &raw const files, ptr::null_mut());
        add("limit the server", check(limited.into()));
        let pidfd = libc::syscall(libc::SYS_pidfd_open, server, 0);
        let none = ptr::null::<c_void>();
        add(
            "signal the server by pidfd",
            check(libc::syscall(libc::SYS_pidfd_send_signal, pidfd, 0, none, 0)),
        );
        add("trace the first process", check(libc::ptrace(libc::PTRACE_ATTACH, 1, 0, 0)));
        add("be traced", check(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0)));
        let mut byte = 0_u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: 0x40_0000 as *mut c_void, iov_len: 1 };
        let read = libc::process_vm_readv(1, &raw const local, 1, &raw const remote, 1, 0);
        add("read memory of the first process", check(read as c_long));
        let written = libc::process_vm_writev(1, &raw const local, 1, &raw const remote, 1, 0);
        add("write memory of the first process", check(written as c_long));
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
        let changed = libc::prlimit(1, libc::RLIMIT_LOCKS, &raw const limit, ptr::null_mut());
        add("change the tag of the first process", check(changed.into()));
        let pidfd = libc::syscall(libc::SYS_pidfd_open, 1, 0);
        add(
            "take a descriptor of the first process",
            check(libc::syscall(libc::SYS_pidfd_getfd, pidfd, 0, 0)),
        );
        add("enter by pidfd", check(libc::setns(pidfd as i32, libc::CLONE_NEWNS).into()));
        match mechanism {
            JailMechanism::Namespaces => {
                // Ignored without an error: it would take the jail down, and this with it.
                libc::kill(1, libc::SIGKILL);
                libc::kill(1, libc::SIGTERM);
            }
            JailMechanism::Landlock => {
                add("signal the first process", check(libc::kill(1, 0).into()));
                let shared = libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600);
                add("share memory", check(shared.into()));
                let semaphores = libc::semget(libc::IPC_PRIVATE, 1, libc::IPC_CREAT | 0o600);
                add("share semaphores", check(semaphores.into()));
                let queue = libc::msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | 0o600);
                add("share a queue", check(queue.into()));
                let queue = libc::syscall(libc::SYS_mq_open, c"remex".as_ptr(), libc::O_CREAT, 0o600, none);
                add("open a queue by name", check(queue));
            }
        }
    }
    for path in ["/proc/1/mem", "/proc/1/environ", "/proc/1/fd/0", "/proc/1/ns/mnt"] {
        add(&format!("read `{path}`"), fs::File::open(path).map(drop));
    }
    add("write the memory of the first process", append("/proc/1/mem"));
    for name in ["comm", "cmdline", "environ", "maps", "mem", "fd/0", "root/etc/passwd", "cwd/.", "task"] {
        let path = format!("/proc/{server}/{name}");
        // Names and attributes are all that there is to see without a `/proc` of its own.
        let seen =
            if name == "task" { fs::read_dir(&path).map(drop) } else { fs::File::open(&path).map(drop) };
        if name != "task" || mechanism == JailMechanism::Namespaces {
            add(&format!("see `{name}` of the server"), seen);
        }
    }
    add("write the memory of the server", append(format!("/proc/{server}/mem")));
    // SAFETY: no memory is involved.
    let typed = unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) };
    add("type into the terminal", check(typed.into()));
    attempts
}

pub(crate) fn network(base: &Path, port: &str, mechanism: JailMechanism) -> Attempts {
    let mut attempts: Attempts = Vec::new();
    let mut add = |what: &str, result: io::Result<()>| attempts.push((what.to_owned(), result));
    let brief = Duration::from_secs(5);
    let connect = |address: &str| TcpStream::connect_timeout(&address.parse().unwrap(), brief).map(drop);
    add("connect to a port of the host", connect(&format!("127.0.0.1:{port}")));
    add("connect to the metadata address", connect("169.254.169.254:80"));
    add("connect to an address", connect("192.0.2.1:443"));
    add("connect to an IPv6 address", connect("[2001:db8::1]:443"));
    let datagram =
        UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", "192.0.2.1:53").map(drop));
    add("ask a name server", datagram);
    add("resolve a name", std::net::ToSocketAddrs::to_socket_addrs(&("example.com", 80)).map(drop));
    add("connect to a unix socket", UnixStream::connect(base.join("socket")).map(drop));
    add("connect to an abstract unix socket", connect_abstract(base));
    let allowed: &[i32] = match mechanism {
        JailMechanism::Namespaces => &[libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
        JailMechanism::Landlock => &[],
    };
    for family in (0..64).filter(|family| !allowed.contains(family)) {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
            // SAFETY: no memory is involved.
            add(&format!("socket {family} {kind}"), check(unsafe { libc::socket(family, kind, 0) }.into()));
        }
    }
    for protocol in 1..32 {
        // SAFETY: no memory is involved.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol) };
        add(&format!("netlink {protocol}"), check(socket.into()));
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        // SAFETY: no memory is involved.
        add(
            &format!("raw socket {family}"),
            check(unsafe { libc::socket(family, libc::SOCK_RAW, 1) }.into()),
        );
    }
    for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
        let mut pair = [0; 2];
        // SAFETY: the kernel writes two descriptors.
        let made =
            unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
        add(&format!("a pair that can be connected elsewhere {kind}"), check(made.into()));
    }
    let own = TcpListener::bind("127.0.0.1:0");
    match mechanism {
        JailMechanism::Namespaces => drop(TcpStream::connect(own.unwrap().local_addr().unwrap()).unwrap()),
        JailMechanism::Landlock => {
            add("listen", own.map(drop));
            // Here it is a name on the host.
            add("give a pair an abstract name", bind_pair());
        }
    }
    UnixStream::pair().expect("pairs of sockets work");
    attempts
}

/// Gives one socket of a pair any free abstract name.
fn bind_pair() -> io::Result<()> {
    let (socket, _other) = UnixStream::pair()?;
    // An address with nothing but a family asks for it.
    let family = libc::AF_UNIX as libc::sa_family_t;
    let len = size_of_val(&family) as libc::socklen_t;
    // SAFETY: the kernel reads as many bytes as the family has.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const family).cast(), len) }.into())
}

/// Connects to the socket with the name of the directory.
pub(crate) fn connect_abstract(base: &Path) -> io::Result<()> {
    let address = SocketAddr::from_abstract_name(base.as_os_str().as_bytes())?;
    UnixStream::connect_addr(&address).map(drop)
}

pub(crate) fn identity(mechanism: JailMechanism) -> Attempts {
    let mut attempts: Attempts = Vec::new();
    let mut add = |what: &str, result: io::Result<()>| attempts.push((what.to_owned(), result));
    let none = || io::Error::other("none");
    // SAFETY: the kernel reads two words and writes six.
    let sets = unsafe {
        let (header, mut sets) = ([0x2008_0522_u32, 0], [0_u32; 6]);
        check(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr())).unwrap();
        sets
    };
    add("have capabilities", if sets == [0; 6] { Err(none()) } else { Ok(()) });
    let is_set = |operation: i32, capability: u64| {
        let (first, second) = match operation {
            libc::PR_CAP_AMBIENT => (libc::PR_CAP_AMBIENT_IS_SET as u64, capability),
            _ => (capability, 0),
        };
        // SAFETY: no memory is involved.
        unsafe { libc::prctl(operation, first, second, 0_u64, 0_u64) == 1 }
    };
    for (name, operation) in [("ambient", libc::PR_CAP_AMBIENT), ("bounding", libc::PR_CAPBSET_READ)] {
        let has_any = (0..41).any(|capability| is_set(operation, capability));
        // An ordinary user without namespaces cannot drop what it could not have anyway.
        if mechanism == JailMechanism::Namespaces || name == "ambient" {
            add(&format!("have a capability in the {name} set"), if has_any { Ok(()) } else { Err(none()) });
        }
    }
    // SAFETY: no memory is involved.
    let settings = unsafe {
        let no_new_privileges = libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0_u64, 0_u64, 0_u64, 0_u64);
        [("no_new_privs", no_new_privileges, 1), ("a filter", libc::prctl(libc::PR_GET_SECCOMP), 2)]
    };
    for (name, found, expected) in settings {
        add(&format!("be without {name}"), if found == expected { Err(none()) } else { Ok(()) });
    }
    // SAFETY: no memory is involved, or it is local.
    unsafe {
        add("become another user", check(libc::setuid(12345).into()));
        add("become another group", check(libc::setgid(12345).into()));
        let groups = [0];
        add("change groups", check(libc::setgroups(1, groups.as_ptr()).into()));
        add("set the host name", check(libc::sethostname(c"x".as_ptr(), 1).into()));
        let header = [0x2008_0522_u32, 0];
        let all = [u32::MAX; 6];
        add("regain capabilities", check(libc::syscall(libc::SYS_capset, header.as_ptr(), all.as_ptr())));
    }
    let mut gained = Command::new("/bin/sh");
    let output = gained.args(["-c", "for p in su sudo mount passwd; do command -v $p; done; true"]).output();
    // Without mounts of its own, only `no_new_privs` keeps a process from it.
    let output = output.unwrap();
    let programs = String::from_utf8_lossy(&output.stdout);
    for program in programs.lines().filter(|_| mechanism == JailMechanism::Namespaces) {
        let flags = rustix::fs::statvfs(program).unwrap().f_flag;
        let is_harmless = flags.contains(rustix::fs::StatVfsMountFlags::NOSUID);
        add(
            &format!("gain by `{program}`"),
            if is_harmless { Err(io::Error::other("nosuid")) } else { Ok(()) },
        );
    }
    attempts
}

/// A system call of the 32-bit architecture, whose numbers mean something else.
pub(crate) fn foreign_call() -> Attempts {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `getpid` of the other architecture changes nothing but the register of the result.
    unsafe {
        let mut _pid: u32 = 20;
        std::arch::asm!("int 0x80", inout("eax") _pid, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    vec![("call by another architecture".to_owned(), Ok(()))]
}

/// Reads some file below a directory; fails if there is none that can be read.
fn read_something(directory: &Path) -> io::Result<()> {
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    for entry in fs::read_dir(directory)?.filter_map(Result::ok) {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let read = if is_directory {
            read_something(&entry.path())
        } else {
            fs::File::open(entry.path()).and_then(|mut file| file.read_exact(&mut [0; 1]))
        };
        if read.is_ok() {
            outcome = read;
        }
    }
    outcome
}
