//! An ssh host for tests: a real ssh server on this machine.
//!
//! Start at [`SshHost`].

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::{home::Home, support::install};

/// A machine with an ssh server and a user of its own, and the user here who can log in there as `ssh far`.
///
/// `remex` is installed there, the user's key has no passphrase and the key of the host is known, unless the test changes
/// that before it connects.
pub(crate) struct SshHost {
    /// The user here; the environment `far` leads there.
    pub(crate) near: Home,
    /// The user there.
    pub(crate) home: Home,
    port: u16,
    stop: Arc<AtomicBool>,
    /// What is connected, or was.
    connections: Arc<Mutex<Vec<TcpStream>>>,
    server: Option<JoinHandle<Vec<Child>>>,
}

/// Where programs are found there.
const PATH_THERE: &str = "/usr/local/bin:/usr/bin:/bin";

impl SshHost {
    /// Starts the server, or returns `None` where there is none, which was said on stderr: the test is then skipped.
    pub(crate) fn start() -> Option<Self> {
        let programs = programs()?;
        let (near, home) = (Home::new(), Home::new());
        for (user, key) in [(&home, "host_key"), (&near, "key")] {
            keygen(&["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", user.path(key).to_str().unwrap()]);
        }
        fs::copy(near.path("key.pub"), home.path("authorized_keys")).unwrap();
        home.program("remex", &format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_remex")));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let connections = Arc::default();
        let server = serve(
            listener,
            programs.join("sshd"),
            configure(&home),
            Arc::clone(&stop),
            Arc::clone(&connections),
        );
        let far = Self { near, home, port, stop, connections, server: Some(server) };
        far.trust("key");
        let user = user();
        let config = format!(
            "Host far 127.0.0.1\n HostName 127.0.0.1\n User {user}\n UserKnownHostsFile {}\n \
             GlobalKnownHostsFile /dev/null\n IdentityFile {}\n IdentitiesOnly yes\n IdentityAgent none\n \
             PasswordAuthentication no\n KbdInteractiveAuthentication no\n\
             Host far\n Port {port}\n",
            far.near.path("known_hosts").display(),
            far.near.path("key").display(),
        );
        fs::write(far.near.path("ssh_config"), config).unwrap();
        // ssh does not look at HOME for its files.
        let ssh = format!(
            "#!/bin/sh\nexec {} -F {} \"$@\"\n",
            programs.join("ssh").display(),
            far.near.path("ssh_config").display()
        );
        far.near.program("ssh", &ssh);
        let environment =
            "[[environments]]\nid = \"far\"\nprogram = \"ssh\"\nargs = [\"far\", \"remex\", \"proxy\"]\n";
        fs::write(far.near.environments(), environment).unwrap();
        Some(far)
    }

    /// Returns where `ssh://` leads there.
    pub(crate) fn url(&self) -> String {
        format!("ssh://{}@127.0.0.1:{}", user(), self.port)
    }

    /// Notes a key as that of the host; `key` is the user's name for it, in the home of who has it.
    fn trust(&self, key: &str) {
        let public = if key == "key" { self.home.path("host_key.pub") } else { self.near.path(key) };
        let public = fs::read_to_string(public).unwrap();
        fs::write(self.near.path("known_hosts"), format!("[127.0.0.1]:{} {public}", self.port)).unwrap();
    }

    /// Lets the user here know no host at all.
    pub(crate) fn forget_host(&self) {
        fs::write(self.near.path("known_hosts"), "").unwrap();
    }

    /// Lets the user here believe that the host has another key.
    pub(crate) fn mistake_host(&self) {
        self.trust("key.pub");
    }

    /// Protects the key of the user here.
    pub(crate) fn set_passphrase(&self, passphrase: &str) {
        let key = self.near.path("key");
        keygen(&["-q", "-p", "-P", "", "-N", passphrase, "-f", key.to_str().unwrap()]);
    }

    /// Adds to the configuration of ssh for this host.
    pub(crate) fn configure_ssh(&self, lines: &str) {
        let path = self.near.path("ssh_config");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, format!("{text}{lines}\n")).unwrap();
    }

    /// Returns how many logins there were so far.
    pub(crate) fn logins(&self) -> usize {
        fs::read_to_string(self.home.path("log")).unwrap().matches("Accepted publickey").count()
    }

    /// Cuts what is connected now.
    pub(crate) fn cut(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Removes `remex` there.
    pub(crate) fn uninstall(&self) {
        fs::remove_file(self.home.path("../bin/remex")).unwrap();
    }

    /// Stops listening: connections are refused.
    pub(crate) fn stop(&mut self) {
        let Some(server) = self.server.take() else { return };
        self.stop.store(true, Ordering::SeqCst);
        // Wakes it.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        for mut connection in server.join().unwrap() {
            let _ = connection.kill();
            let _ = connection.wait();
        }
    }
}

impl Drop for SshHost {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves each connection with a server of its own, as inetd does, so that no port has to be chosen.
fn serve(
    listener: TcpListener,
    sshd: PathBuf,
    config: PathBuf,
    stop: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
) -> JoinHandle<Vec<Child>> {
    thread::spawn(move || {
        let mut connections = Vec::new();
        loop {
            let (stream, _) = listener.accept().unwrap();
            if stop.load(Ordering::SeqCst) {
                return connections;
            }
            open.lock().unwrap().push(stream.try_clone().unwrap());
            let side = || Stdio::from(OwnedFd::from(stream.try_clone().unwrap()));
            let server = Command::new(&sshd)
                .args(["-i", "-f"])
                .arg(&config)
                .arg("-E")
                .arg(config.with_file_name("log"))
                .stdin(side())
                .stdout(side())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            connections.push(server);
        }
    })
}

/// Writes the configuration of the server, and returns where it is.
fn configure(home: &Home) -> PathBuf {
    let at = |name: &str| home.path(name).display().to_string();
    let mut environment = Command::new("true");
    home.dress(&mut environment);
    let own_programs = environment
        .get_envs()
        .find_map(|(name, value)| (name == "PATH").then(|| value.unwrap().to_str().unwrap().to_owned()))
        .and_then(|path| path.split(':').next().map(str::to_owned))
        .unwrap();
    // The session begins at home as the user's shell would, which is whatever it is on this machine.
    let session = format!(
        "#!/bin/sh\ncd {home} || exit\nif [ -f .startup ]; then . ./.startup; fi\nexec sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
        home = at("")
    );
    fs::write(at("session"), session).unwrap();
    fs::set_permissions(at("session"), fs::Permissions::from_mode(0o755)).unwrap();
    let variables: String = environment
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)))
        .filter(|(name, _)| ["HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"].contains(name))
        .map(|(name, value)| format!(" {name}={value}"))
        .collect();
    let config = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\nPidFile none\nLogLevel VERBOSE\n\
         ForceCommand {}\nSetEnv PATH={own_programs}:{PATH_THERE}{variables}\n",
        at("host_key"),
        at("authorized_keys"),
        at("session"),
    );
    let path = home.path("sshd_config");
    OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .open(&path)
        .unwrap()
        .write_all(config.as_bytes())
        .unwrap();
    path
}

fn keygen(args: &[&str]) {
    let keygen = programs().unwrap().join("ssh-keygen");
    let output = Command::new(keygen).args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns the directory of the ssh programs, which are unpacked if the machine has none.
fn programs() -> Option<&'static Path> {
    static PROGRAMS: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| install("sshd")).as_deref()
}
