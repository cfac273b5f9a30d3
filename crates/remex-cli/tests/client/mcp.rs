//! `remex mcp` with other people's clients: the SDKs for TypeScript and Python, the inspector, and the conformance tests.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    languages::{readme_block, said},
    support::{PATIENCE, Patient, exchange, install, request, token_of, write_private},
};

/// The conformance tests for any server; the others want tools that only a server made for them has.
const SCENARIOS: [&str; 6] = [
    "server-initialize",
    "ping",
    "tools-list",
    "server-sse-polling",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

/// A user with a local server of its own, which ends with this.
struct Host {
    directory: TempDir,
}

/// `remex mcp` on a port.
struct Http {
    child: Child,
    url: String,
    token: String,
}

impl Drop for Http {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["home", "run", "work"] {
            std::fs::DirBuilder::new().mode(0o700).create(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a command in the environment of this user.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (variable, name) in [
            ("HOME", "home"),
            ("XDG_RUNTIME_DIR", "run"),
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_STATE_HOME", "state"),
        ] {
            command.env(variable, self.path(name));
        }
        command.env_remove("REMEX_ON").env("no_proxy", "*").stdin(Stdio::null());
        command
    }

    /// Serves on a port.
    fn http(&self) -> Http {
        let token = token_of("mcp");
        let file = self.path("token");
        write_private(&file, &token);
        let mut child = self
            .command(env!("CARGO_BIN_EXE_remex"))
            .args(["mcp", "--listen", "127.0.0.1:0", "--token-file"])
            .arg(file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(Patient::new(child.stdout.take().unwrap())).read_line(&mut url).unwrap();
        Http { child, url: url.trim_end().to_owned(), token }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let stopped = self.command(env!("CARGO_BIN_EXE_remex")).args(["server", "stop", "--force"]).output();
        drop(stopped);
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client/mcp").join(name)
}

/// Returns the arguments of `remex` in the configuration that the README shows.
fn readme_arguments() -> Vec<String> {
    let block = readme_block("toml");
    let configuration: toml_edit::DocumentMut = block.parse().unwrap();
    let server = &configuration["mcp_servers"]["remex"];
    assert_eq!(server["command"].as_str(), Some("remex"));
    let args = server["args"].as_array().expect("it has arguments");
    args.iter().map(|arg| arg.as_str().unwrap().to_owned()).collect()
}

/// Uses the tools through an SDK, as the README configures it and over HTTP.
fn use_tools(sdk: impl Fn(&Host) -> Command) {
    let host = Host::new();
    let mut stdio = sdk(&host);
    stdio.arg(host.path("work")).args(["stdio", env!("CARGO_BIN_EXE_remex")]).args(readme_arguments());
    assert_eq!(said(&mut stdio), "ok\n");
    let host = Host::new();
    let server = host.http();
    let mut http = sdk(&host);
    http.arg(host.path("work")).args(["http", &server.url, &server.token]);
    assert_eq!(said(&mut http), "ok\n");
}

#[test]
fn a_changed_token_file_replaces_the_token() {
    let host = Host::new();
    let server = host.http();
    let address = server.url.replace("http://", "ws://").replace("/mcp", "");
    let is_known = |token: &str| {
        let asked = request("GET", "/mcp", &[&format!("Authorization: Bearer {token}")]);
        // A connection ends without an answer if the token is replaced meanwhile.
        exchange(&address, asked).is_some_and(|answer| answer.status != 401)
    };
    let new = token_of("another");
    assert_eq!([server.token.as_str(), &new].map(is_known), [true, false]);
    write_private(&host.path("token.new"), &new);
    std::fs::rename(host.path("token.new"), host.path("token")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !is_known(&new) {
        assert!(Instant::now() < deadline, "waited for the new token");
        // Nothing tells that another program has read a file.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_known(&server.token), "the previous token is refused");
}

#[test]
fn the_typescript_sdk_uses_the_tools() {
    let Some(installed) = install("mcp") else { return };
    use_tools(|host| {
        let mut node = host.command("node");
        node.arg(script("sdk.mjs")).env("MCP_MODULES", &installed);
        node
    });
}

#[test]
fn the_python_sdk_uses_the_tools() {
    let Some(installed) = install("mcp") else { return };
    use_tools(|host| {
        let mut python = host.command(installed.join("python/bin/python"));
        python.arg(script("sdk.py"));
        python
    });
}

#[test]
fn the_inspector_lists_and_calls_tools() {
    let Some(installed) = install("mcp") else { return };
    let host = Host::new();
    let inspect = |args: &[&str]| -> Value {
        let mut node = host.command(installed.join("node_modules/.bin/node"));
        node.arg(installed.join("node_modules/.bin/mcp-inspector"));
        node.args(["--cli", env!("CARGO_BIN_EXE_remex"), "mcp", "--method"]).args(args);
        serde_json::from_str(&said(&mut node)).unwrap()
    };
    let listed = inspect(&["tools/list"]);
    assert_eq!(listed["tools"].as_array().unwrap().len(), 13, "{listed}");
    let called =
        inspect(&["tools/call", "--tool-name", "run_command", "--tool-arg", "command=echo it works"]);
    assert_eq!(called["structuredContent"]["output"], "it works\n", "{called}");
}

#[test]
fn the_conformance_tests_for_any_server_pass() {
    let Some(installed) = install("mcp") else { return };
    let host = Host::new();
    let server = host.http();
    let modules = installed.join("node_modules");
    for scenario in SCENARIOS {
        let mut node = host.command(modules.join(".bin/node"));
        node.arg("--import").arg(script("token.mjs"));
        node.arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"));
        node.args(["server", "--url", &server.url, "--scenario", scenario]);
        node.env("MCP_MODULES", &installed).env("MCP_TOKEN", &server.token);
        let text = said(&mut node);
        assert!(text.contains(", 0 failed"), "{scenario}: {text}");
    }
}
