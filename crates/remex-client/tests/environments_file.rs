//! What an environments file says, and what is said about one that is wrong.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{io, path::Path, time::Duration};

use proptest::prelude::*;
use remex_client::{
    Program, Target, WebSocket,
    environment::{Definition, DefinitionErrors, Definitions, Draft, FileError, Id, LocalInclusion},
    tls::{Pin, TlsOptions},
};

#[test]
fn a_codex_file_is_accepted_as_it_is() {
    let draft = parse(
        r#"
default = "devbox"
include_local = true

[[environments]]
id = "devbox"
url = "ws://127.0.0.1:8765"
connect_timeout_sec = 10
initialize_timeout_sec = 0.5
auth_bearer_token = "s3cret"

[[environments]]
id = "ssh-dev"
program = "ssh"
args = ["dev", "codex exec-server --listen stdio"]
cwd = "/srv"
[environments.env]
LANG = "C"
"#,
    )
    .unwrap();
    assert_eq!(draft.warnings, []);
    assert!(draft.has_token());
    let socket = WebSocket::new("ws://127.0.0.1:8765").bearer("s3cret");
    let devbox = Definition::new(Id::new("devbox").unwrap(), socket.into())
        .connect_timeout(Duration::from_secs(10))
        .initialize_timeout(Duration::from_millis(500));
    let ssh =
        Program::new("ssh").args(["dev", "codex exec-server --listen stdio"]).env("LANG", "C").cwd("/srv");
    let ssh = Definition::new(Id::new("ssh-dev").unwrap(), Target::Program(ssh));
    let mut expected = Definitions::local();
    expected.default = Some(devbox.id.clone());
    expected.environments = vec![devbox, ssh];
    assert_eq!(draft.with_tokens(no_files), Ok(expected));
}

#[test]
fn unknown_keys_are_ignored_with_a_warning() {
    let draft = parse(
        "colour = 'red'\ndefualt = 'a'\n[[environments]]\nid = 'a'\nurl = 'wss://host'\narg = 1\n[other]\nx = 1",
    )
    .unwrap();
    let told: Vec<_> = draft.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "etc/environments.toml:1: unknown key `colour` is ignored; check the spelling, unless the key is for another program",
            "etc/environments.toml:2: unknown key `defualt` is ignored; did you mean `default`?",
            "etc/environments.toml:6: environment `a`: unknown key `arg` is ignored; did you mean `args`?",
            "etc/environments.toml:7: unknown key `other` is ignored; check the spelling, unless the key is for another program",
        ]
    );
    assert_eq!(draft.with_tokens(no_files).unwrap().environments.len(), 1);
}

#[test]
fn the_default_is_that_of_the_file_or_local_or_the_first() {
    let two = "[[environments]]\nid = 'a'\nurl = '/a'\n[[environments]]\nid = 'b'\nurl = '/b'\n";
    for (head, default) in [
        ("", Some("local")),
        ("default = 'b'\n", Some("b")),
        ("default = 'local'\n", Some("local")),
        ("default = 'none'\n", None),
        ("include_local = false\n", Some("a")),
        ("include_local = false\ndefault = 'b'\n", Some("b")),
    ] {
        let definitions = parse(&format!("{head}{two}")).unwrap().with_tokens(no_files).unwrap();
        assert_eq!(definitions.default.as_ref().map(Id::as_str), default, "{head}");
    }
    assert_eq!(parse("").unwrap().with_tokens(no_files), Ok(Definitions::local()));
    assert_eq!(parse("include_local = false").unwrap().with_tokens(no_files), Ok(Definitions::nothing()));
}

#[test]
fn relative_paths_are_resolved_against_the_directory_of_the_file() {
    let definitions = parse(
        "[[environments]]\nid = 'a'\nprogram = 'bin/agent'\ncwd = 'work'\n\
         [[environments]]\nid = 'b'\nurl = 'unix:run.sock'\n\
         [[environments]]\nid = 'c'\nprogram = 'ssh'",
    )
    .unwrap()
    .with_tokens(no_files)
    .unwrap();
    let target = |id: &str| definitions.find(&Id::new(id).unwrap()).unwrap().target.clone();
    let agent = Program::new("etc/bin/agent").cwd("etc/work");
    assert_eq!(target("a"), Target::Program(agent));
    assert_eq!(target("b"), Target::unix("etc/run.sock"));
    assert_eq!(target("c"), Target::program("ssh", [""; 0]));
}

#[test]
fn a_secure_address_has_a_ca_a_pin_and_a_client_certificate() {
    let pin = format!("sha256:{}", "5a".repeat(32));
    let text = format!(
        "[[environments]]\nid = 'a'\nurl = 'wss://host'\nca = 'ca.pem'\npin = '{pin}'\n\
         client_cert = '/me.pem'\nclient_key = 'me.key'\n"
    );
    let draft = parse(&text).unwrap();
    assert_eq!(draft.warnings, []);
    let definitions = draft.with_tokens(no_files).unwrap();
    let tls = TlsOptions::new().ca("etc/ca.pem").pin(Pin([0x5a; 32])).identity("/me.pem", "etc/me.key");
    assert_eq!(definitions.environments[0].target, WebSocket::new("wss://host").tls(tls).into());
}

/// Each file, and everything that is said about it.
const WRONG: &[(&str, &[&str])] = &[
    (
        "environments = [{ id = 'a', url = 'ws://a', ca = 'ca.pem' }]",
        &["1: environment `a`: `ca` is valid only with a `wss://` address; change `url`, or remove it"],
    ),
    (
        "environments = [{ id = 'a', program = 'ssh', pin = '' }]",
        &["1: environment `a`: `pin` is valid only with a `wss://` address; change `url`, or remove it"],
    ),
    (
        "environments = [{ id = 'a', url = '/a', client_cert = 'a' }]",
        &[
            "1: environment `a`: `client_cert` is valid only with a `wss://` address; change `url`, or remove it",
        ],
    ),
    (
        "environments = [{ id = 'a', url = 'wss://a', client_cert = 'a' }]",
        &["1: environment `a`: `client_cert` is set without `client_key`; add `client_key`"],
    ),
    (
        "environments = [{ id = 'a', url = 'wss://a', client_key = 'a' }]",
        &["1: environment `a`: `client_key` is set without `client_cert`; add `client_cert`"],
    ),
    (
        "environments = [{ id = 'a', url = 'wss://a', pin = 'abc' }]",
        &[
            "1: environment `a`: cannot use `pin`: it is not the SHA-256 digest of a public key; write `sha256:` and 64 hexadecimal digits",
        ],
    ),
    (
        "environments = [{ id = 'a', url = 'wss://me:pw@a' }]",
        &[
            "1: environment `a`: cannot use `wss://…@a` as a server: it contains a user name, which `ws://` does not use; write `ws://host:port` or `wss://host:port`",
        ],
    ),
    (
        "default = \n[[environments]]\nid == 'a'\n",
        &["1: string values must be quoted, expected literal string", "3: extra `=`, expected nothing"],
    ),
    ("default = 'a'\ndefault = 'b'", &["2: duplicate key"]),
    (
        "[environments]\nid = 'a'",
        &["1: `environments` is not a list of tables; begin each environment with `[[environments]]`"],
    ),
    (
        "environments = [\n1]",
        &["2: `environments` is not a list of tables; begin each environment with `[[environments]]`"],
    ),
    (
        "default = 1\ninclude_local = 'yes'",
        &[
            "1: `default` is not a string; write `default = \"…\"`",
            "2: `include_local` is not true or false; write `include_local = true`",
        ],
    ),
    (
        "default = 'a'",
        &[
            "1: the default environment `a` is not defined; set it with `remex env default NAME`, or ignore it with `--here`",
        ],
    ),
    (
        "default = 'local'\ninclude_local = false",
        &["1: `local` is the default, but `include_local` is false; make it true, or choose another default"],
    ),
    (
        "default = 'a b'\n[[environments]]\nid = 'a b'\nurl = '/a'",
        &["3: environment `a b`: an id may contain only ASCII letters, digits, `-` and `_`; rename it"],
    ),
    (
        "[[environments]]\nid = ''\nurl = '/a'\n[[environments]]\nid = 7\nurl = '/a'\n\n[[environments]]\nurl = '/a'",
        &[
            "2: `id` is empty; give it a value, or remove it",
            "5: `id` is not a string; write `id = \"…\"`",
            "8: an environment has no id; add `id = \"…\"`",
        ],
    ),
    (
        "[[environments]]\nid = 'local'\nurl = '/a'\n[[environments]]\nid = 'none'\nurl = '/a'",
        &[
            "2: environment `local`: the ids `local` and `none` are reserved; rename it",
            "5: environment `none`: the ids `local` and `none` are reserved; rename it",
        ],
    ),
    (
        "[[environments]]\nid = 'a'\nurl = '/a'\n[[environments]]\nid = 'a'\nurl = '/b'",
        &["5: environment `a`: the id is already used in line 2; rename one of them"],
    ),
    (
        "[[environments]]\nid = 'a'\nurll = '/a'",
        &[
            "1: environment `a`: `url` or `program` is missing; add one of them",
            "3: environment `a`: unknown key `urll` is ignored; did you mean `url`?",
        ],
    ),
    (
        "[[environments]]\nid = 'a'\nurl = '/a'\nprogram = 'x'",
        &["4: environment `a`: both `url` and `program` are set; keep one of them"],
    ),
    (
        "[[environments]]\nid = 'a'\nurl = 'ws://h'\nargs = []\ncwd = '/'\n[environments.env]",
        &[
            "4: environment `a`: `args` is valid only with `program`; remove it",
            "5: environment `a`: `cwd` is valid only with `program`; remove it",
            "6: environment `a`: `env` is valid only with `program`; remove it",
        ],
    ),
    (
        "[[environments]]\nid = 'a'\nprogram = 'x'\nauth_bearer_token = 's3cret'",
        &["4: environment `a`: `auth_bearer_token` is valid only with `url`; remove it"],
    ),
    (
        "[[environments]]\nid = 'a'\nurl = 'http://me:s3cret@h'",
        &[
            "3: environment `a`: cannot use `http://…@h` as a server: not a server address; use `ws://host:port`, `wss://host:port`, `ssh://host`, `unix:///path` or `/path`",
        ],
    ),
    (
        "[[environments]]\nid = 'a'\nprogram = '~/x'\ncwd = '~'\nargs = ['a', 1]\nenv = 'x'",
        &[
            "3: environment `a`: `program` starts with `~`, which is not expanded; write an absolute path, or one relative to the directory of this file",
            "4: environment `a`: `cwd` starts with `~`, which is not expanded; write an absolute path, or one relative to the directory of this file",
            "5: environment `a`: `args` is not a list of strings; write `args = [\"…\"]`",
            "6: environment `a`: `env` is not a table of strings; write `env = { NAME = \"…\" }`",
        ],
    ),
    (
        "[[environments]]\nid = 'a'\nprogram = \"x\\u0000\"\nargs = [\"\\u0000\"]\n[environments.env]\n'A=B' = ''\nC = \"\\u0000\"\nD = 1",
        &[
            "3: environment `a`: `program` contains a NUL byte; remove it",
            "4: environment `a`: `args` contains a NUL byte; remove it",
            "6: environment `a`: `env` contains the invalid variable name `A=B`; rename it",
            "7: environment `a`: `env` contains a NUL byte; remove it",
            "8: environment `a`: `env` is not a table of strings; write `env = { NAME = \"…\" }`",
        ],
    ),
    (
        "[[environments]]\nid = 'a'\nurl = '/a'\nconnect_timeout_sec = 0\ninitialize_timeout_sec = -1.5\n\
         [[environments]]\nid = 'b'\nurl = '/b'\nconnect_timeout_sec = inf\ninitialize_timeout_sec = '5'\n\
         [[environments]]\nid = 'c'\nurl = '/c'\nconnect_timeout_sec = 1e-12\ninitialize_timeout_sec = 1e300",
        &[
            "4: environment `a`: `connect_timeout_sec` is not a positive number of seconds; write `5` or `0.5`, or remove it",
            "5: environment `a`: `initialize_timeout_sec` is not a positive number of seconds; write `5` or `0.5`, or remove it",
            "9: environment `b`: `connect_timeout_sec` is not a positive number of seconds; write `5` or `0.5`, or remove it",
            "10: environment `b`: `initialize_timeout_sec` is not a positive number of seconds; write `5` or `0.5`, or remove it",
            "14: environment `c`: `connect_timeout_sec` is not a positive number of seconds; write `5` or `0.5`, or remove it",
            "15: environment `c`: `initialize_timeout_sec` is not a positive number of seconds; write `5` or `0.5`, or remove it",
        ],
    ),
    (
        "[[environments]]\nid = 'a'\nurl = 'ws://h'\nauth_bearer_token = 's3cret'\nauth_bearer_token_file = 'f'\n\
         [[environments]]\nid = 'b'\nurl = '/b'\nauth_bearer_token = 's3cret'\n\
         [[environments]]\nid = 'c'\nurl = 'ws://h'\nauth_bearer_token = 's3cret with spaces'\n\
         [[environments]]\nid = 'd'\nurl = 'ws://h'\nauth_bearer_token_file = '~/token'",
        &[
            "5: environment `a`: both `auth_bearer_token` and `auth_bearer_token_file` are set; keep one of them",
            "9: environment `b`: only a WebSocket uses a token; remove it",
            "13: environment `c`: the token contains white space or invalid characters; check it",
            "17: environment `d`: `auth_bearer_token_file` starts with `~`, which is not expanded; write an absolute path, or one relative to the directory of this file",
        ],
    ),
];

#[test]
fn every_mistake_is_named_with_file_line_and_remedy() {
    for (text, expected) in WRONG {
        let DefinitionErrors(errors) = parse(text).unwrap_err();
        let told: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let expected: Vec<_> =
            expected.iter().map(|error| format!("etc/environments.toml:{error}")).collect();
        assert_eq!(told, expected, "{text}");
        assert!(!format!("{errors:?}").contains("s3cret"), "{errors:?}");
    }
}

#[test]
fn an_id_may_have_64_characters_and_not_65() {
    let file = |id: String| format!("[[environments]]\nid = '{id}'\nurl = '/a'");
    assert!(parse(&file("x".repeat(64))).is_ok());
    let told = parse(&file("x".repeat(65))).unwrap_err().to_string();
    let id = "x".repeat(65);
    assert_eq!(
        told,
        format!(
            "etc/environments.toml:2: environment `{id}`: the id is longer than 64 characters; shorten it"
        )
    );
}

#[test]
fn quoted_values_stay_on_one_short_line() {
    let told = parse(&format!("[[environments]]\nid = \"\\n{}\"\nurl = '/a'", "x".repeat(999)))
        .unwrap_err()
        .to_string();
    assert_eq!(told.lines().count(), 1);
    assert!(told.len() < 300, "{told}");
}

#[test]
fn tokens_are_read_from_their_files_and_trimmed() {
    let draft = parse(TOKENS).unwrap();
    assert!(!draft.has_token());
    let definitions = draft.with_tokens(|path| Ok(format!(" {}-s3cret\r\n", path.display()))).unwrap();
    let bearers: Vec<_> = definitions
        .environments
        .iter()
        .map(|definition| match &definition.target {
            Target::WebSocket(socket) => socket.bearer.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(bearers, [Some("etc/a.token-s3cret".to_owned()), Some("/b.token-s3cret".to_owned())]);
    assert!(!format!("{definitions:?}").contains("s3cret"));
}

#[test]
fn a_token_file_without_a_token_is_named() {
    let told = |answer: fn() -> io::Result<String>| {
        parse(TOKENS).unwrap().with_tokens(|_| Ok(answer()?)).unwrap_err().to_string()
    };
    assert_eq!(
        told(|| Err(io::Error::new(io::ErrorKind::NotFound, "no such file"))),
        "etc/environments.toml:4: environment `a`: cannot use the token file `etc/a.token`: no such file\n\
         etc/environments.toml:8: environment `b`: cannot use the token file `/b.token`: no such file"
    );
    assert_eq!(
        told(|| Ok(" \n".to_owned())).lines().next().unwrap(),
        "etc/environments.toml:4: environment `a`: the token file `etc/a.token` is empty; write the token to it"
    );
    assert_eq!(
        told(|| Ok("s3cret\nHost: evil".to_owned())).lines().next().unwrap(),
        "etc/environments.toml:4: environment `a`: the token contains white space or invalid characters; check it"
    );
}

const TOKENS: &str = "[[environments]]\nid = 'a'\nurl = 'ws://a'\nauth_bearer_token_file = 'a.token'\n\
    [[environments]]\nid = 'b'\nurl = 'ws://b'\nauth_bearer_token_file = '/b.token'";

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*") {
        let _ = parse(&text);
    }

    #[test]
    fn no_mutated_file_makes_the_parser_panic(lines in prop::collection::vec(line(), 0..20)) {
        let text = lines.join("\n");
        match parse(&text) {
            Ok(draft) => {
                let definitions = draft.with_tokens(|_| Ok("token".to_owned())).unwrap();
                let default = definitions.default.clone();
                let is_there = default.is_none_or(|id| match definitions.local {
                    LocalInclusion::Included if id == Id::local() => true,
                    _ => definitions.find(&id).is_some(),
                });
                prop_assert!(is_there, "{text}");
            }
            Err(DefinitionErrors(errors)) => {
                prop_assert!(errors.is_sorted_by_key(|error| error.line));
                prop_assert!(errors.iter().all(|error| (1..=lines.len()).contains(&error.line)));
            }
        }
    }
}

#[test]
fn the_reconnect_timeout_may_be_unlimited() {
    let file =
        |value: &str| format!("[[environments]]\nid = 'a'\nurl = '/a'\nreconnect_timeout_sec = {value}");
    for (value, expected) in [("90", Duration::from_secs(90)), ("'forever'", Duration::MAX)] {
        let definitions = parse(&file(value)).unwrap().with_tokens(no_files).unwrap();
        assert_eq!(definitions.environments[0].reconnect_timeout, Some(expected));
    }
    for wrong in ["0", "'never'", "inf"] {
        let told = parse(&file(wrong)).unwrap_err().to_string();
        let expected = "4: environment `a`: `reconnect_timeout_sec` is not a positive number of seconds; write a number such \
                        as `3600`, or `\"forever\"`";
        assert!(told.ends_with(expected), "{told}");
    }
}

fn line() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "id",
        "url",
        "program",
        "args",
        "env",
        "cwd",
        "default",
        "include_local",
        "auth_bearer_token",
        "auth_bearer_token_file",
        "connect_timeout_sec",
        "initialize_timeout_sec",
        "reconnect_timeout_sec",
        "environments",
        "urk",
    ]);
    let value = prop::sample::select(vec![
        "'a'",
        "'b'",
        "'local'",
        "'none'",
        "'forever'",
        "'ws://h'",
        "'/s'",
        "''",
        "1",
        "-1",
        "0.5",
        "nan",
        "true",
        "false",
        "[]",
        "['x']",
        "{}",
        "{A='b'}",
        "[{id='c', url='/c'}]",
        "1979-05-27",
        "=",
        "0xffffffffffffffff",
    ]);
    prop_oneof![
        2 => Just("[[environments]]".to_owned()),
        1 => Just("[environments.env]".to_owned()),
        8 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
    ]
}

fn parse(text: &str) -> Result<Draft, DefinitionErrors> {
    Definitions::parse(text, Path::new("etc/environments.toml"))
}

fn no_files(_: &Path) -> Result<String, FileError> {
    Err(io::Error::other("no file was expected").into())
}
