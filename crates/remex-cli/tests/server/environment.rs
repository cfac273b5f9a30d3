//! What a client learns about the host.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Server, program};

/// Starts a server on stdio whose environment is prepared by `prepare`, and connects to it.
fn serve(prepare: impl FnOnce(&mut Command)) -> (Server, Client) {
    let mut command = program(&["serve", "--listen", "stdio"]);
    for variable in ["TMPDIR", "CODEX_HOME"] {
        command.env_remove(variable);
    }
    prepare(&mut command);
    let (server, client) = Server::launch_stdio(command);
    client.initialize();
    (server, client)
}

/// Starts a server with these variables set, and asks it about the host.
fn info(variables: &[(&str, &str)]) -> Value {
    let (_server, client) = serve(|command| {
        command.envs(variables.iter().copied());
    });
    client.call("environment/info", json!({})).expect("information")
}

fn uri(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// The line of `/etc/passwd` about the user who runs the tests.
fn own_entry() -> Option<Vec<String>> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").expect("a host has a list of users");
    users
        .lines()
        .map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>())
        .find(|user| user[2] == uid)
}

#[test]
fn the_initialize_response_describes_the_host_too() {
    for (transport, _server, client) in Server::on_every_transport() {
        let answer = client.initialize();
        let mut alone = client.call("environment/info", Value::Null).expect("information");
        // What takes time to find out is in the answer to a question of its own.
        alone.as_object_mut().expect("an object").remove("confinement").expect("it is in there");
        assert_eq!(answer["environmentInfo"], alone, "{transport}");
    }
}

#[test]
fn the_host_is_described() {
    let directory = TempDir::new().expect("a directory");
    let (_server, client) = serve(|command| {
        command.current_dir(directory.path()).env("HOME", "/somewhere").env("SHELL", "/nowhere/zsh");
    });
    let mut info = client.call("environment/info", json!({})).expect("information");
    let provider = info["providerId"].take();
    let confinement = info["confinement"].take();
    assert_eq!((&confinement["processes"], &confinement["reason"]), (&json!("namespaces"), &Value::Null));
    let limits = info["processLimits"].take();
    for limit in ["cpuSeconds", "openFiles", "fileBytes"] {
        assert_eq!(limits[limit], "rlimit", "{limits}");
    }
    for limit in ["memoryBytes", "processes"] {
        assert!(
            ["rlimit", "cgroup", "unavailable"].iter().any(|method| limits[limit] == *method),
            "{limits}"
        );
    }
    let provider = provider.as_str().expect("a text").strip_prefix("sha256:").expect("a digest").to_owned();
    assert!(provider.len() == 64 && provider.bytes().all(|digit| digit.is_ascii_hexdigit()), "{provider}");
    let shell = own_entry().map_or("/bin/sh".to_owned(), |user| user[6].clone());
    let name = Path::new(&shell).file_name().and_then(|name| name.to_str()).expect("a name");
    assert_eq!(
        info,
        json!({
            "shell": {"name": name, "path": shell},
            "executorVersion": env!("CARGO_PKG_VERSION"),
            "providerId": null,
            "cwd": uri(&directory.path().canonicalize().expect("it is there")),
            "userHomeDir": "file:///somewhere",
            "platformOs": "linux",
            "prependPathDirs": [],
            "temporaryDirectories": [],
            "tempDir": "file:///tmp",
            "capabilities": {
                "networkProxyLaunch": true,
                "capabilityDiscoveryV2": true,
                "capabilityDiscoverySandbox": true,
                "fsWatchMissing": true,
                "environmentConfigRead": true,
                "httpHeaderEnvVars": true,
                "sandboxedFileStreaming": true,
                "fileWriteStreaming": true,
                "shellSnapshotV2": true,
                "processRestart": true,
                "processRestartRequest": true,
                "processUser": rustix::process::geteuid().is_root(),
                "processIncarnation": true,
            },
            "processLimits": null,
            "confinement": null,
        })
    );
}

#[test]
fn the_provider_id_is_stable_and_does_not_reveal_the_machine_id() {
    let (one, other) = (info(&[("HOME", "/a")]), info(&[("HOME", "/b")]));
    assert_eq!(one["providerId"], other["providerId"]);
    if let Ok(machine) = fs::read_to_string("/etc/machine-id") {
        let machine = machine.trim();
        assert!(machine.is_empty() || !one.to_string().contains(machine));
    }
}

#[test]
fn temporary_files_respect_tmpdir() {
    let told = info(&[("TMPDIR", "/var/tmp")]);
    assert_eq!(told["tempDir"], "file:///var/tmp");
    assert_eq!(told["temporaryDirectories"], json!(["file:///var/tmp"]));
    for not_a_place in ["", "relative"] {
        let told = info(&[("TMPDIR", not_a_place)]);
        assert_eq!((&told["tempDir"], &told["temporaryDirectories"]), (&json!("file:///tmp"), &json!([])));
    }
}

#[test]
fn the_account_provides_the_home_directory_if_home_is_not_a_path() {
    let home = own_entry().map(|user| uri(Path::new(&user[5])));
    for not_a_place in ["", "relative"] {
        assert_eq!(info(&[("HOME", not_a_place)])["userHomeDir"], json!(home));
    }
    let told = info(&[("HOME", "/with space")]);
    assert_eq!(told["userHomeDir"], "file:///with%20space");
}

#[test]
fn a_server_starts_in_a_deleted_working_directory() {
    let directory = TempDir::new().expect("a directory");
    let gone = directory.path().join("gone");
    fs::create_dir(&gone).expect("a directory");
    let mut command = Command::new("/bin/sh");
    let script = format!("cd '{0}' && rmdir '{0}' && exec \"$0\" serve --listen stdio", gone.display());
    command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_remex"));
    let (server, client) = Server::launch_stdio(command);
    assert_eq!(client.initialize()["environmentInfo"]["cwd"], "file:///");
    server.stderr_line("cannot determine the working directory");
}

#[test]
fn a_responding_host_is_ready() {
    let server = Server::start();
    assert_eq!(server.client().call("environment/status", json!({})), Ok(json!({"status": "ready"})));
}

#[test]
fn nothing_is_revealed_before_the_handshake() {
    let families = [
        ("environment/info", json!({}), "environment info"),
        ("environment/status", json!({}), "environment status"),
        (
            "environmentConfig/read",
            json!({"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []}),
            "environment config",
        ),
        ("fs/getMetadata", json!({"path": "file:///"}), "filesystem"),
        ("fs/watchMissing", json!({"watchId": 1, "missing": []}), "filesystem"),
        ("http/request", json!({"method": "GET", "url": "http://127.0.0.1:1/", "requestId": "r"}), "http"),
    ];
    let server = Server::start();
    let client = server.connect();
    for (method, params, family) in &families {
        let refused = format!("client must call initialize before using {family} methods");
        assert_eq!(client.refusal(method, params.clone()), (-32600, refused));
    }
    client.call("initialize", json!({"clientName": "x", "resumeSessionId": null})).expect("a session");
    for (method, params, family) in &families {
        let refused = format!("client must send initialized before using {family} methods");
        assert_eq!(client.refusal(method, params.clone()), (-32600, refused));
    }
}

#[test]
fn unsupported_methods_are_refused_by_name() {
    let server = Server::start();
    let client = server.client();
    let (code, message) = client.refusal("network/policyRequest", json!({}));
    assert_eq!(code, -32601);
    assert!(message.contains("network/policyRequest"), "{message}");
}

/// A home directory with a configuration in it, and a server for its owner.
struct Owner {
    directory: TempDir,
    client: Client,
    _server: Server,
}

impl Owner {
    fn new(config: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let home = directory.path().join("home/.codex");
        fs::create_dir_all(&home).expect("directories");
        fs::write(home.join("config.toml"), config).expect("a file");
        let (server, client) = serve(|command| {
            command.env("HOME", directory.path().join("home"));
        });
        Owner { directory, client, _server: server }
    }

    fn path(&self, below: &str) -> String {
        self.directory.path().join(below).display().to_string()
    }

    fn uri(&self, below: &str) -> String {
        uri(&self.directory.path().join(below))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().expect("a file is somewhere")).expect("directories");
        fs::write(path, text).expect("a file");
    }

    /// Asks for keys of the configuration, as seen from a directory.
    fn read(&self, cwd: &str, keys: &Value) -> Result<Value, Value> {
        let params = json!({"cwd": self.uri(cwd), "configPaths": keys, "requirementsPaths": keys});
        self.client.call("environmentConfig/read", params)
    }

    /// Returns where the layers that the system has no part in come from.
    fn sources(&self, cwd: &str) -> Vec<String> {
        let reply = self.read(cwd, &json!([["k"]])).expect("layers");
        let layers = reply["config"]["layers"].as_array().expect("a list").clone();
        layers.iter().map(|layer| layer["source"].as_str().expect("a text").to_owned()).collect()
    }
}

#[test]
fn the_user_s_configuration_is_a_layer_with_the_selected_keys() {
    let owner = Owner::new("# mine\nmodel = 'm'\n[mcp_servers.a]\nurl = 'http://x/'\n[other]\nk = 1\n");
    let reply = owner.read("nowhere", &json!([["mcp_servers"], ["nothing", "here"]])).expect("layers");
    assert_eq!(
        reply,
        json!({
            "userHomeDir": owner.uri("home"),
            "codexHomeDir": owner.uri("home/.codex"),
            "hostname": rustix::system::uname().nodename().to_str().expect("a name"),
            "config": {
                "layers": [{
                    "source": format!("user ({})", owner.path("home/.codex/config.toml")),
                    "baseDir": owner.uri("home/.codex"),
                    "toml": "[mcp_servers.a]\nurl = \"http://x/\"\n",
                }],
                "cloudInsertionIndex": 0,
            },
            "requirements": {"layers": [], "cloudInsertionIndex": 0},
        })
    );
    owner.write("home/.codex/config.toml", "");
    let reply = owner.read("", &json!([["mcp_servers"]])).expect("layers");
    assert_eq!(reply["config"], json!({"layers": [], "cloudInsertionIndex": 0}), "it is read anew");
}

#[test]
fn codex_home_overrides_the_configuration_directory() {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("config.toml"), "k = 1").expect("a file");
    let params = json!({"cwd": "file:///", "configPaths": [["k"]], "requirementsPaths": []});
    let (_server, client) = serve(|command| {
        command.env("CODEX_HOME", directory.path());
    });
    let reply = client.call("environmentConfig/read", params.clone()).expect("layers");
    assert_eq!(reply["codexHomeDir"], uri(directory.path()));
    assert_eq!(reply["config"]["layers"][0]["toml"], "k = 1\n");

    let (_server, client) = serve(|command| {
        command.env("CODEX_HOME", "/nope");
    });
    let missing =
        "failed to find Codex home: CODEX_HOME points to \"/nope\", but that path does not exist".to_owned();
    assert_eq!(client.refusal("environmentConfig/read", params), (-32603, missing));
}

#[test]
fn a_project_has_layers_where_the_user_trusts_it() {
    let owner = Owner::new("k = 0");
    let user = format!("user ({})", owner.path("home/.codex/config.toml"));
    let project = |below: &str| format!("project ({})", owner.path(&format!("{below}.codex/config.toml")));
    for directory in ["ws", "ws/sub", "ws/sub/deep"] {
        owner.write(&format!("{directory}/.codex/config.toml"), "k = 1");
    }
    assert_eq!(owner.sources("ws/sub"), std::slice::from_ref(&user), "nobody said that it can be trusted");

    let trust = |directory: &str, level: &str| {
        format!("[projects.\"{}\"]\ntrust_level = \"{level}\"\n", owner.path(directory))
    };
    owner.write("home/.codex/config.toml", &format!("k = 0\n{}", trust("ws", "trusted")));
    assert_eq!(owner.sources("ws"), [user.clone(), project("ws/")]);
    fs::create_dir(owner.path("ws/.git")).expect("a directory");
    assert_eq!(owner.sources("ws/sub"), std::slice::from_ref(&user), "an empty .git is no repository");
    owner.write("ws/.git/HEAD", "ref: refs/heads/main\n");
    assert_eq!(
        owner.sources("ws/sub/deep"),
        [user.clone(), project("ws/"), project("ws/sub/"), project("ws/sub/deep/")],
        "from the root of the project down"
    );

    let levels = [trust("ws", "trusted"), trust("ws/sub", "untrusted")].concat();
    owner.write("home/.codex/config.toml", &format!("k = 0\n{levels}"));
    assert_eq!(owner.sources("ws/sub"), [user.clone(), project("ws/")]);
    owner.write("home/.codex/config.toml", &format!("k = 0\n{}", trust("ws/sub", "trusted")));
    assert_eq!(owner.sources("ws/sub/deep"), [user.clone(), project("ws/sub/")]);

    owner.write("home/.codex/config.toml", &format!("k = 0\n{}", trust("home", "trusted")));
    assert_eq!(owner.sources("home"), [user], "the user's own file is no project");
}

#[test]
fn an_empty_selection_is_refused() {
    let owner = Owner::new("");
    let wrong = [
        (json!([]), "at least one config or requirements path is required"),
        (json!([["a"], []]), "TOML paths must contain at least one key segment"),
    ];
    for (keys, message) in wrong {
        let error = owner.read("", &keys).expect_err("a refusal");
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(message)));
    }
    let read = |params| owner.client.refusal("environmentConfig/read", params);
    let without = json!({"cwd": "file:///", "configPaths": [["a"]]});
    assert_eq!(read(without), (-32602, "missing field `requirementsPaths`".to_owned()));
    let foreign = json!({"cwd": "file://host/x", "configPaths": [["a"]], "requirementsPaths": []});
    assert_eq!(read(foreign), (-32602, "'file://host/x' is invalid on 'linux'".to_owned()));
}

#[test]
fn an_unreadable_file_is_named_with_its_error() {
    let owner = Owner::new("ok = 1\n[mcp_servers\n");
    let file = owner.path("home/.codex/config.toml");
    let error = owner.read("", &json!([["k"]])).expect_err("a refusal");
    let message = error["message"].as_str().expect("a text");
    let place = format!("failed to load executor-local config: {file}:2:13: ");
    assert!(error["code"] == -32603 && message.starts_with(&place), "{message}");
    assert_eq!(error["data"]["hint"], format!("correct `{file}` on the host, or move it away"));

    let no_file = format!(
        "failed to load executor-local config: Failed to read config file {file}: path `{file}` is not a file"
    );
    fs::remove_file(&file).expect("it was there");
    let fifo = rustix::fs::mknodat(
        rustix::fs::CWD,
        file.as_str(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    );
    fifo.expect("a FIFO");
    let refused = || owner.read("", &json!([["k"]])).expect_err("a refusal")["message"].clone();
    assert_eq!(refused(), no_file, "nobody waits for a FIFO");
    fs::remove_file(&file).expect("it was there");
    fs::create_dir(&file).expect("a directory");
    assert_eq!(refused(), no_file);
    fs::remove_dir(&file).expect("it was there");
    fs::write(&file, "#".repeat((1 << 20) + 1)).expect("a file");
    assert!(refused().as_str().expect("a text").ends_with("it is longer than 1048576 bytes"));
}
