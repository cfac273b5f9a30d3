//! Where the environments of a user come from.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use remex::environments::{Configured, Error, Source, Warning, configured};
use remex_client::{
    Target,
    environment::{Definitions, Id},
};

const FILE: &str = "[[environments]]\nid = 'dev'\nurl = '/dev.sock'\n";

#[test]
fn nothing_configured_is_local() {
    let found = Home::new().configured().unwrap();
    let expected =
        Configured { definitions: Definitions::local(), source: Source::BuiltIn, warnings: Vec::new() };
    assert_eq!(found, expected);
    assert_eq!(configured(|_| None).unwrap(), expected);
}

#[test]
fn our_variable_takes_precedence_over_that_of_codex_unless_empty() {
    let codex = Home::new().with("CODEX_EXEC_SERVER_URL", "/codex.sock");
    assert_eq!(target(&codex), (Source::Variable("CODEX_EXEC_SERVER_URL"), Target::unix("/codex.sock")));
    let empty = codex.with("REMEX_URL", "");
    assert_eq!(target(&empty), (Source::Variable("CODEX_EXEC_SERVER_URL"), Target::unix("/codex.sock")));
    let ours = empty.with("REMEX_URL", "/ours.sock");
    assert_eq!(target(&ours), (Source::Variable("REMEX_URL"), Target::unix("/ours.sock")));
    let none = ours.with("REMEX_URL", "none");
    assert_eq!(none.configured().unwrap().definitions, Definitions::nothing());
    let bad = none.with("REMEX_URL", "http://h").configured().unwrap_err();
    assert_eq!(
        bad.to_string(),
        "REMEX_URL: cannot use `http://h` as a server: not a server address; use `ws://host:port`, `wss://host:port`, `ssh://host`, `unix:///path` or `/path`"
    );
}

#[test]
fn the_file_replaces_the_variables() {
    let home = Home::new().with("REMEX_URL", "/ours.sock");
    let path = home.write(".config/remex/environments.toml", FILE, 0o600);
    let found = home.configured().unwrap();
    assert_eq!(found.source, Source::File(path.clone()));
    assert!(found.definitions.find(&Id::new("dev").unwrap()).is_some());
    assert_eq!(found.warnings, [Warning::Replaced { variable: "REMEX_URL", path }]);
}

#[test]
fn the_file_is_in_the_configuration_directory() {
    let home = Home::new();
    home.write(".config/remex/environments.toml", "broken", 0o600);
    let elsewhere = home.write("elsewhere/remex/environments.toml", FILE, 0o600);
    let directory = home.path().join("elsewhere");
    let found = home.with("XDG_CONFIG_HOME", directory).configured().unwrap();
    assert_eq!(found.source, Source::File(elsewhere));
}

#[test]
fn a_relative_configuration_directory_does_not_count() {
    let home = Home::new().with("XDG_CONFIG_HOME", "relative");
    let path = home.write(".config/remex/environments.toml", FILE, 0o600);
    assert_eq!(home.configured().unwrap().source, Source::File(path));
}

#[test]
fn the_file_of_codex_is_mentioned_and_not_read() {
    let home = Home::new();
    let codex = home.write(".codex/environments.toml", FILE, 0o600);
    let ours = home.path().join(".config/remex/environments.toml");
    let found = home.configured().unwrap();
    assert_eq!(found.definitions, Definitions::local());
    assert_eq!(found.warnings, [Warning::CodexFile { codex: codex.clone(), ours: ours.clone() }]);

    fs::create_dir_all(ours.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(codex, &ours).unwrap();
    let found = home.configured().unwrap();
    assert_eq!((found.source, found.warnings), (Source::File(ours), Vec::new()));
}

#[test]
fn an_unreadable_file_is_an_error_unlike_a_missing_one() {
    let home = Home::new();
    let path = home.path().join(".config/remex/environments.toml");
    fs::create_dir_all(&path).unwrap();
    assert_eq!(
        told(&home),
        format!("cannot read `{}`: it is not a regular file; name a regular file", path.display())
    );
    fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(matches!(home.configured(), Err(Error::Unreadable { .. })));
}

#[test]
fn a_file_writable_by_others_is_refused() {
    let home = Home::new();
    for mode in [0o620, 0o602] {
        let path = home.write(".config/remex/environments.toml", FILE, mode);
        assert_eq!(
            told(&home),
            format!(
                "cannot read `{}`: other users can write to it, and could make it run programs; run `chmod go-w {}`",
                path.display(),
                path.display()
            )
        );
    }
}

#[test]
fn a_token_readable_by_others_causes_a_warning() {
    let home = Home::new();
    let text = "[[environments]]\nid = 'dev'\nurl = 'ws://h'\nauth_bearer_token = 's3cret'";
    let path = home.write(".config/remex/environments.toml", text, 0o644);
    assert_eq!(home.configured().unwrap().warnings, [Warning::Exposed { path }]);
    home.write(".config/remex/environments.toml", text, 0o600);
    assert_eq!(home.configured().unwrap().warnings, []);
    home.write(".config/remex/environments.toml", FILE, 0o644);
    assert_eq!(home.configured().unwrap().warnings, []);
}

#[test]
fn a_token_file_readable_by_others_is_refused() {
    let home = Home::new();
    let text = "[[environments]]\nid = 'dev'\nurl = 'ws://h'\nauth_bearer_token_file = 'token'";
    let path = home.write(".config/remex/environments.toml", text, 0o600);
    let token = home.write(".config/remex/token", "s3cret\n", 0o600);
    let Target::WebSocket(socket) = &home.configured().unwrap().definitions.environments[0].target.clone()
    else {
        panic!("not a WebSocket")
    };
    assert_eq!(socket.bearer.as_deref(), Some("s3cret"));
    home.write(".config/remex/token", "s3cret\n", 0o640);
    let found = home.configured().unwrap();
    assert_eq!(
        found.token_error(&found.definitions.environments[0].id).unwrap().to_string(),
        format!(
            "{}:4: environment `dev`: cannot use the token file `{}`: other users can read it; run `chmod 600 {}`, and change the token, because others may have read it",
            path.display(),
            token.display(),
            token.display()
        )
    );
}

fn target(home: &Home) -> (Source, Target) {
    let Configured { source, definitions, .. } = home.configured().unwrap();
    (source, definitions.environments[0].target.clone())
}

fn told(home: &Home) -> String {
    home.configured().unwrap_err().to_string()
}

/// A user with a home directory and variables.
struct Home {
    directory: tempfile::TempDir,
    variables: HashMap<&'static str, OsString>,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let variables = HashMap::from([("HOME", directory.path().into())]);
        Self { directory, variables }
    }

    fn with(mut self, variable: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.insert(variable, value.into());
        self
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, path: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn configured(&self) -> Result<Configured, Error> {
        configured(|name| self.variables.get(name).cloned())
    }
}
