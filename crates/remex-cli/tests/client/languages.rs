//! The clients in other languages: their own tests, and the behaviour that `spec/behaviour` describes, over every
//! transport and over networks that fail.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    faults::{
        chance::Chance,
        proxy::{Proxy, Tally},
    },
    support::{Pki, Server, install, token_of, write_private},
};

/// How many seconds all tests of one client may take.
const SECONDS: &str = "900";

/// Servers of all kinds, and proxies before some of them.
struct Targets {
    list: Vec<Value>,
    tally: Arc<Tally>,
    _servers: Vec<Server>,
    _secure: (Pki, tempfile::TempDir),
    _proxies: Vec<Proxy>,
    _runtime: tokio::runtime::Runtime,
}

impl Targets {
    /// Starts them; what goes wrong with connections follows from the seed.
    fn start(seed: u64) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (unix, websocket) = (Server::unix(&[]), Server::start());
        let (pki, _) = Pki::new();
        let directory = tempfile::tempdir().unwrap();
        let tokens = directory.path().join("tokens");
        let token = token_of("clients");
        write_private(&tokens, &token);
        let flags = ["--ws-auth", "capability-token", "--ws-token-file", tokens.to_str().unwrap()];
        let secure = pki.serve(&flags);
        let tally = Arc::new(Tally::default());
        let mut chance = Chance::new(seed);
        let proxies: Vec<_> = [&unix, &websocket]
            .into_iter()
            .map(|server| {
                let starting = Proxy::before_faulty_at_times(server.address(), chance.branch(), &tally);
                runtime.block_on(starting)
            })
            .collect();
        let mut list = vec![
            json!({"name": "unix", "url": unix.address()}),
            json!({"name": "ws", "url": websocket.address()}),
            json!({"name": "wss", "url": secure.address(), "token": token, "ca": pki.arg("ca.pem")}),
            json!({"name": "stdio", "program": [env!("CARGO_BIN_EXE_remex"), "serve", "--listen", "stdio"]}),
        ];
        for (name, proxy) in ["faulty unix", "faulty ws"].into_iter().zip(&proxies) {
            list.push(json!({"name": name, "url": proxy.target().to_string(), "faults": true}));
        }
        Self {
            list,
            tally,
            _servers: vec![unix, websocket, secure],
            _secure: (pki, directory),
            _proxies: proxies,
            _runtime: runtime,
        }
    }

    /// Runs the tests of a client, and shows what they say if they fail.
    fn test(&self, program: &Path, set_up: impl FnOnce(&mut Command)) {
        let mut command = Command::new("timeout");
        command.args(["-k", "10", SECONDS]).arg(program);
        set_up(&mut command);
        command
            .env("REMEX_BIN", env!("CARGO_BIN_EXE_remex"))
            .env("REMEX_BEHAVIOUR_TARGETS", Value::from(self.list.clone()).to_string())
            .env("no_proxy", "*")
            .stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
        let cut = self.tally.cut.load(std::sync::atomic::Ordering::Relaxed);
        assert!(cut > 10, "too little goes wrong: {:?}", self.tally);
    }
}

fn directory(language: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients").join(language)
}

#[test]
fn the_python_client_behaves_as_described() {
    let Some(python) = install("python") else { return };
    Targets::start(1).test(&python, |command| {
        command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).current_dir(directory("python"));
        command.env("PYTHONPATH", directory("python").join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
    });
}

#[test]
fn the_typescript_client_behaves_as_described() {
    let Some(project) = install("node") else { return };
    Targets::start(2).test(Path::new("npm"), |command| {
        command.args(["test", "--silent"]).current_dir(project);
    });
}
