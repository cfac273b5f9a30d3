//! Attempts to get out of a jail, made from inside.

#![allow(unsafe_code, clippy::unwrap_used, reason = "raw system calls; and in a test it is the assertion")]

mod harness;
mod inmate;

use std::{
    ffi::{CStr, CString, c_long, c_void},
    fs::{self, OpenOptions, Permissions},
    io,
    net::{TcpListener, TcpStream, UdpSocket},
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{PermissionsExt as _, symlink},
            net::{SocketAddr, UnixListener, UnixStream},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::Command,
    ptr,
    sync::Arc,
    time::Duration,
};

use inmate::{confined, orders, preset, report, reports};
use remex_process::{Jail, Start};
use remex_proto::sandbox::{Access, Entry, EntryPath};
use remex_sandbox::{Network, Policy, Preset, Request, SystemHost, resolve, testing::context};
use tempfile::TempDir;

/// What the confined program runs as.
#[test]
fn inside() {
    let Some(orders) = orders() else { return };
    let mut words = orders.split(' ');
    let (what, base) = (words.next().unwrap(), Path::new(words.next().unwrap()));
    let server = words.next().unwrap();
    let attempts = match what {
        "files" => files(base),
        "kernel" => kernel(),
        "processes" => processes(server),
        "network" => network(base, words.next().unwrap()),
        "identity" => identity(),
        "foreign" => foreign_call(),
        other => panic!("`{other}` is no attempt"),
    };
    for (name, outcome) in attempts {
        match outcome {
            Ok(()) => report(&format!("ESCAPED: {name}")),
            Err(error) => report(&format!("held: {name}: {error}")),
        }
    }
    report("survived");
}

type Attempts = Vec<(String, io::Result<()>)>;

fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).unwrap()
}

fn append(path: impl AsRef<Path>) -> io::Result<()> {
    OpenOptions::new().append(true).open(path).map(drop)
}

/// In `base`, `w` is writable except for `.git`, and the rest can be read.
fn files(base: &Path) -> Attempts {
    let (w, out) = (base.join("w"), base.join("out"));
    let file = out.join("file");
    fs::write(w.join("mine"), "mine").expect("the workspace can be written");
    fs::read(&file).expect("what is outside can be read");
    symlink(&file, w.join("to-file")).unwrap();
    symlink(&out, w.join("to-out")).unwrap();
    let mut attempts: Attempts = Vec::new();
    for (place, directory, file) in
        [("outside", out.clone(), file.clone()), ("protected", w.join(".git"), w.join(".git/config"))]
    {
        let mut add = |what: &str, result: io::Result<()>| attempts.push((format!("{what} {place}"), result));
        add("write", append(&file));
        add("create", fs::write(directory.join("new"), ""));
        add("make a directory", fs::create_dir(directory.join("new")));
        add("make a link", symlink("x", directory.join("new")));
        add("truncate", OpenOptions::new().write(true).truncate(true).open(&file).map(drop));
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
    add("list what is hidden", fs::read_dir(base.join("hidden")).map(drop));
    add("replace what is hidden", fs::rename(base.join("hidden"), base.join("seen")));
    attempts
}

fn kernel() -> Attempts {
    let mut attempts: Attempts = Vec::new();
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
    call("clone3", libc::SYS_clone3, [none; 5]);
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

fn processes(server: &str) -> Attempts {
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
        // Only processes of the jail are reached, and there is none but this and the first.
        add("signal everything", check(libc::kill(-1, libc::SIGKILL).into()));
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
        // Ignored without an error: it would take the jail down, and this with it.
        libc::kill(1, libc::SIGKILL);
        libc::kill(1, libc::SIGTERM);
    }
    for path in ["/proc/1/mem", "/proc/1/environ", "/proc/1/fd/0", "/proc/1/ns/mnt"] {
        add(&format!("read `{path}`"), fs::File::open(path).map(drop));
    }
    add("write the memory of the first process", append("/proc/1/mem"));
    add("see the server", fs::metadata(format!("/proc/{server}/comm")).map(drop));
    // SAFETY: no memory is involved.
    let typed = unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) };
    add("type into the terminal", check(typed.into()));
    attempts
}

fn network(base: &Path, port: &str) -> Attempts {
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
    let name = base.as_os_str().as_bytes();
    let is_connected =
        SocketAddr::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address));
    add("connect to an abstract unix socket", is_connected.map(drop));
    let allowed = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
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
    // The own loopback device and pairs of sockets work.
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    TcpStream::connect(own.local_addr().unwrap()).unwrap();
    UnixStream::pair().unwrap();
    attempts
}

fn identity() -> Attempts {
    let mut attempts: Attempts = Vec::new();
    let mut add = |what: &str, result: io::Result<()>| attempts.push((what.to_owned(), result));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_matches([':', '\t', ' ']).to_owned()
    };
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let has_none = u64::from_str_radix(&field(name), 16) == Ok(0);
        add(
            &format!("have a capability in {name}"),
            if has_none { Err(io::Error::other("none")) } else { Ok(()) },
        );
    }
    let expected = [("NoNewPrivs", "1"), ("Seccomp", "2")];
    for (name, value) in expected {
        add(
            &format!("be without {name}"),
            if field(name) == value { Err(io::Error::other(value)) } else { Ok(()) },
        );
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
    for program in String::from_utf8_lossy(&output.unwrap().stdout).lines() {
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
fn foreign_call() -> Attempts {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `getpid` of the other architecture changes nothing but the register of the result.
    unsafe {
        let mut _pid: u32 = 20;
        std::arch::asm!("int 0x80", inout("eax") _pid, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    vec![("call by another architecture".to_owned(), Ok(()))]
}

/// A workspace, and what is around it.
struct Yard {
    directory: TempDir,
}

impl Yard {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        for name in ["w/.git", "w/sub", "out", "hidden"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        for name in ["w/.git/config", "out/file", "hidden/secret"] {
            fs::write(base.join(name), "content").unwrap();
        }
        Self { directory }
    }

    fn base(&self) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap()
    }

    fn policy(&self) -> Policy {
        preset(Preset::WorkspaceWrite, &self.base().join("w"))
    }

    fn jail(&self) -> Jail {
        Jail::new(Arc::new(self.policy()), Arc::new([self.base().join("hidden")]))
    }

    fn start(&self, what: &str, more: &str) -> Start {
        let orders = format!("{what} {} {} {more}", self.base().display(), std::process::id());
        confined(self.jail(), "inside", &orders)
    }
}

/// Runs attempts in a jail, and fails if one of them succeeds.
async fn holds(start: Start, least: usize) {
    let (output, status) = harness::run(start).await;
    let reports = reports(&output);
    assert_eq!((status.code, reports.last().copied()), (0, Some("survived")), "{output}");
    let escaped: Vec<_> = reports.iter().filter(|report| report.starts_with("ESCAPED")).collect();
    assert!(escaped.is_empty(), "{escaped:#?}");
    assert!(reports.len() > least, "only {} attempts were made", reports.len());
}

#[tokio::test]
async fn nothing_outside_the_workspace_can_be_changed() {
    let yard = Yard::new();
    holds(yard.start("files", ""), 40).await;
    let content = |name: &str| fs::read_to_string(yard.base().join(name)).unwrap();
    for name in ["w/.git/config", "out/file", "hidden/secret"] {
        assert_eq!(content(name), "content", "{name}");
    }
    assert_eq!(fs::read_dir(yard.base().join("out")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(yard.base().join("w/.git")).unwrap().count(), 1);
}

#[tokio::test]
async fn the_directory_of_what_a_pattern_denies_stays_in_place() {
    let yard = Yard::new();
    let w = yard.base().join("w");
    fs::create_dir(w.join("a")).unwrap();
    fs::write(w.join("a/x.key"), "secret").unwrap();
    let pattern = EntryPath::GlobPattern { pattern: "a/*.key".to_owned() };
    let mut entries = Preset::WorkspaceWrite.entries();
    entries.push(Entry { path: pattern, access: Access::Deny, missing_path_behavior: None });
    let context = context(entries, Some(vec![w.clone().into()]));
    let policy = resolve(&Request { context: &context, cwd: None, tmpdir: None }, &SystemHost).unwrap();
    let script = format!("cd '{}' && touch a/new && ! cat a/x.key && ! mv a b && ! cat b/x.key", w.display());
    let start = harness::start(harness::NULL, harness::TAGS.tag(1, 2), "/bin/sh", &["-c", &script]);
    let (output, status) = harness::run(Start { jail: Some(inmate::jail(policy)), ..start }).await;
    assert!(status.code == 0 && !output.contains("secret"), "{status:?}: {output}");
    assert!(w.join("a/x.key").exists() && w.join("a/new").exists());
}

#[tokio::test]
async fn the_kernel_gives_nothing_away() {
    holds(Yard::new().start("kernel", ""), 50).await;
}

#[tokio::test]
async fn other_processes_are_out_of_reach() {
    let yard = Yard::new();
    holds(yard.start("processes", ""), 15).await;
    holds(Start { stdio: harness::PTY, ..yard.start("processes", "") }, 15).await;
}

#[tokio::test]
async fn there_is_no_network_but_the_own() {
    let yard = Yard::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let _socket = UnixListener::bind(yard.base().join("socket")).unwrap();
    let name = SocketAddr::from_abstract_name(yard.base().as_os_str().as_bytes()).unwrap();
    let _abstract = UnixListener::bind_addr(&name).unwrap();
    holds(yard.start("network", &port.local_addr().unwrap().port().to_string()), 200).await;
}

#[tokio::test]
async fn no_privileges_are_left_or_gained() {
    holds(Yard::new().start("identity", ""), 10).await;
}

/// Root is a user like any other in a jail, so both must be tried.
#[test]
fn all_this_holds_for_an_ordinary_user_too() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        // So it has been tried already.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (program, own) = (directory.path().join("escape"), directory.path().join("own"));
    // Not by this program: a child that is just being created would hold the file open for writing.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    fs::create_dir(&own).unwrap();
    for (path, mode) in [(directory.path(), 0o755), (&program, 0o755), (&own, 0o777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).env("TMPDIR", own).current_dir("/");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_call_of_another_architecture_is_fatal() {
    let (output, status) = harness::run(Yard::new().start("foreign", "")).await;
    // A kernel without that architecture kills the process as well.
    assert!(status.signal.is_some(), "{output} {status:?}");
    assert_eq!(reports(&output), [] as [&str; 0]);
}

#[tokio::test]
async fn with_a_network_the_sockets_of_the_server_are_hidden() {
    let yard = Yard::new();
    let socket = yard.base().join("hidden/socket");
    let _listening = UnixListener::bind(&socket).unwrap();
    let jail = Jail::new(Arc::new(Policy::open(Network::Enabled)), Arc::new([yard.base().join("hidden")]));
    let script =
        format!("cat {0}/secret; ls {0}; mv {0} {0}2; echo done", yard.base().join("hidden").display());
    let start = Start { jail: Some(jail), ..harness::shell(harness::NULL, harness::TAGS.tag(1, 2), &script) };
    let (output, _) = harness::run(start).await;
    assert_eq!(output, "done\n");
    assert!(socket.exists());
}
