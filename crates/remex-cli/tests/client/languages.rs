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
    support::{PATIENCE, Pki, Server, default_signals, finished_within, install, token_of, write_private},
};

/// How many seconds all tests of one client may take.
const SECONDS: &str = "900";

/// Servers of all kinds, and a proxy before one of them.
struct Targets {
    list: Vec<Value>,
    tally: Arc<Tally>,
    _servers: Vec<Server>,
    _secure: (Pki, tempfile::TempDir),
    _proxy: Proxy,
    _runtime: tokio::runtime::Runtime,
}

impl Targets {
    /// Starts them; what goes wrong with the connections to one of them follows from the seed.
    fn start(faulty: &str, seed: u64) -> Self {
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
        let server = if faulty == "unix" { &unix } else { &websocket };
        let starting = Proxy::before_faulty_at_times(server.address(), Chance::new(seed), &tally);
        let proxy = runtime.block_on(starting);
        let mut list = vec![
            json!({"name": "unix", "url": unix.address()}),
            json!({"name": "ws", "url": websocket.address()}),
            json!({"name": "wss", "url": secure.address(), "token": token, "ca": pki.arg("ca.pem")}),
            json!({"name": "stdio", "program": [env!("CARGO_BIN_EXE_remex"), "serve", "--listen", "stdio"]}),
        ];
        list.push(
            json!({"name": format!("faulty {faulty}"), "url": proxy.target().to_string(), "faults": true}),
        );
        Self {
            list,
            tally,
            _servers: vec![unix, websocket, secure],
            _secure: (pki, directory),
            _proxy: proxy,
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
fn the_clients_in_other_languages_behave_as_described() {
    // They wait most of the time, so all of them at once.
    std::thread::scope(|scope| {
        scope.spawn(the_python_client_behaves_as_described);
        scope.spawn(the_typescript_client_behaves_as_described);
    });
}

fn the_python_client_behaves_as_described() {
    let Some(python) = install("python") else { return };
    Targets::start("ws", 1).test(&python, |command| {
        command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).current_dir(directory("python"));
        command.env("PYTHONPATH", directory("python").join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
    });
}

fn the_typescript_client_behaves_as_described() {
    let Some(project) = install("node") else { return };
    Targets::start("unix", 2).test(Path::new("npm"), |command| {
        command.args(["test", "--silent"]).current_dir(project);
    });
}

#[test]
fn a_page_in_a_browser_uses_the_typescript_client() {
    let (Some(project), Some(browser)) = (install("node"), install("chromium")) else { return };
    let mut npm = Command::new("npm");
    npm.args(["run", "--silent", "test:browser"]).current_dir(project);
    said(npm.env("REMEX_BIN", env!("CARGO_BIN_EXE_remex")).env("CHROMIUM", browser).env("no_proxy", "*"));
}

/// Returns the first block of the README in a language.
pub(super) fn readme_block(language: &str) -> String {
    let readme = std::fs::read_to_string(directory("..").join("README.md")).unwrap();
    let (_, rest) = readme.split_once(&format!("```{language}\n")).expect("the README shows the language");
    rest.split_once("```").unwrap().0.to_owned()
}

/// Returns the same for the server at `address`.
fn connecting_block(language: &str, address: &str) -> String {
    let block = readme_block(language);
    assert!(block.contains(README_ADDRESS), "the block connects: {block}");
    block.replace(README_ADDRESS, address)
}

/// Where the README connects to.
const README_ADDRESS: &str = "ws://127.0.0.1:7070";

/// What its blocks print.
const README_OUTPUT: &str = "1\n2\n3\n4\n";

/// Runs a program to its end, and returns what it prints.
pub(super) fn said(command: &mut Command) -> String {
    default_signals();
    // Packages are built and installed, which takes long beside other work.
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = finished_within(&mut child, 5 * PATIENCE).unwrap_or_else(|waited| panic!("{waited}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn packages_install_in_clean_environments_and_run_what_the_readme_shows() {
    let (Some(python), Some(_)) = (install("python"), install("node")) else { return };
    let place = tempfile::tempdir().unwrap();
    let packages = place.path().join("packages");
    said(
        Command::new(directory("..").join("scripts/package-clients"))
            .arg(&packages)
            .env("PROGRAM", env!("CARGO_BIN_EXE_remex")),
    );
    let package = |beginning: &str, end: &str| {
        let names = std::fs::read_dir(&packages).unwrap().map(|entry| entry.unwrap().path());
        let is_wanted = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(beginning) && name.ends_with(end)
        };
        names.into_iter().find(is_wanted).unwrap_or_else(|| panic!("no {beginning}*{end}"))
    };
    let server = Server::start();

    let environment = place.path().join("environment");
    said(Command::new(python).args(["-m", "venv"]).arg(&environment));
    let python = environment.join("bin/python");
    let wheels = [package("remex_client-", ".whl"), package("remex_program-", ".whl")];
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    said(Command::new(&python).args(pip).args(wheels));
    let version = said(Command::new(environment.join("bin/remex")).arg("--version"));
    assert_eq!(version, format!("remex {}\n", env!("CARGO_PKG_VERSION")));
    let block = connecting_block("python", server.address());
    assert_eq!(said(Command::new(&python).args(["-c", &block])), README_OUTPUT);

    let project = place.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("package.json"), "{\"type\": \"module\"}").unwrap();
    let npm = ["install", "--offline", "--no-audit", "--no-fund", "--loglevel", "error"];
    said(Command::new("npm").args(npm).arg(package("remex-client-", ".tgz")).current_dir(&project));
    std::fs::write(project.join("readme.js"), connecting_block("js", server.address())).unwrap();
    assert_eq!(said(Command::new("node").arg("readme.js").current_dir(&project)), README_OUTPUT);
    server.stop();
}
