use super::*;

const FILE: &str = "/etc/remex/server.toml";

fn parse(text: &str) -> Result<ServerConfig, String> {
    ServerConfig::parse(text, Path::new(FILE)).map_err(|errors| errors.to_string())
}

/// Returns what is wrong, each with its line.
fn mistakes(text: &str) -> Vec<String> {
    let errors = parse(text).unwrap_err();
    errors.lines().map(|line| line.strip_prefix(FILE).unwrap().trim_start_matches(':').to_owned()).collect()
}

/// Returns a file with every key, each with its example.
fn all_examples() -> String {
    let mut text = String::new();
    let mut table = "";
    for key in keys() {
        if key.table != table {
            table = key.table;
            let _ = writeln!(text, "[{table}]");
        }
        let _ = writeln!(text, "{} = {}", key.name, key.example);
    }
    text
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parse(""), Ok(ServerConfig::default()));
    assert_eq!(parse(&ServerConfig::default().to_toml()), Ok(ServerConfig::default()));
}

#[test]
fn every_key_can_be_set_and_printed_and_read_back() {
    let (defaults, config) = (ServerConfig::default(), parse(&all_examples()).unwrap());
    for key in keys() {
        let shown = key.show(&config);
        assert!(shown.is_some(), "{} is set and not shown", key.path());
        let is_default = shown == key.show(&defaults);
        let is_example = key.show(&defaults).as_deref() == Some(key.example);
        assert!(!is_default || is_example || key.example == "\"24h\"", "{} is read and not set", key.path());
    }
    let printed = config.to_toml();
    assert_eq!(parse(&printed), Ok(config), "{printed}");
}

#[test]
fn every_key_is_documented() {
    let printed = ServerConfig::default().to_toml();
    for key in keys() {
        assert!(!key.doc.is_empty(), "{}", key.path());
        let line = format!("\n{} = ", key.name);
        assert!(
            printed.contains(&line) || printed.contains(&format!("\n#{} = ", key.name)),
            "{}",
            key.path()
        );
    }
}

#[test]
fn values_are_read() {
    let config = parse(
        r#"
        listen = ["unix:///run/remex.sock", "systemd"]
        max_detach_ttl = "forever"
        shutdown_grace = "500ms"
        [tls]
        cert = "tls/cert.pem"
        key = "/keys/key.pem"
        [auth]
        owner_scope = "processes=4 files:read=/srv"
        users = [{ name = "ann" }, { name = "1001", scope = "http" }]
        token_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
        [[auth.certificates]]
        name = "dns:ci"
        [auth.jwt]
        issuer = "https://login.example.com"
        [limits]
        message_bytes = "16 MiB"
        stdin_bytes = 4096
        requests_per_second = 50
        [metrics]
        listen = "127.0.0.1:9464"
        "#,
    )
    .unwrap();
    assert_eq!(config.listen, ["unix:///run/remex.sock", "systemd"]);
    assert_eq!(
        (config.limits.detach_ttl_max, config.limits.shutdown_grace),
        (None, Duration::from_millis(500))
    );
    assert_eq!(config.tls.cert.as_deref(), Some(Path::new("/etc/remex/tls/cert.pem")));
    assert_eq!(config.tls.key.as_deref(), Some(Path::new("/keys/key.pem")));
    assert_eq!(config.auth.owner_scope.to_string(), "processes=4 files:read=/srv");
    assert_eq!(config.auth.users[0], User { name: "ann".to_owned(), scope: Scopes::all() });
    assert_eq!(config.auth.users[1].scope.to_string(), "http");
    assert_eq!(config.auth.token_sha256[0][..2], [0x9f, 0x86]);
    assert_eq!(config.auth.certificates.as_ref().unwrap()[0].name, "dns:ci".parse().unwrap());
    assert_eq!(config.auth.jwt.issuer.as_deref(), Some("https://login.example.com"));
    assert_eq!((config.limits.message_bytes, config.limits.stdin_bytes), (16 << 20, 4096));
    assert_eq!(config.limits.requests_per_second, Some(50));
    assert_eq!(config.metrics.listen, Some("127.0.0.1:9464".parse().unwrap()));
}

#[test]
fn an_empty_list_of_certificates_is_not_a_missing_one() {
    let listed = |text: &str| parse(text).unwrap().auth.certificates;
    assert_eq!(listed(""), None);
    assert_eq!(listed("[auth]\ncertificates = []"), Some(Vec::new()));
}

#[test]
fn a_certificate_name_without_its_kind_is_refused() {
    let refused = |name: &str| {
        let text = format!("[auth]\ncertificates = [\n{{ name = '{name}' }}]");
        parse(&text).unwrap_err().to_string()
    };
    assert_eq!(
        refused("ci"),
        "/etc/remex/server.toml:3: cannot use `ci` for `certificates`: it does not say which kind of name it is; \
         write `dns:ci`, `uri:spiffe://…` or `cn:ci`, as the certificate has it"
    );
    assert!(refused("uri:https://ci").contains("it is not a SPIFFE URI"));
    let spiffe = parse("[auth]\ncertificates = [{ name = 'spiffe://example.com/ci' }]").unwrap();
    assert!(spiffe.to_toml().contains("name = \"uri:spiffe://example.com/ci\""));
}

#[test]
fn metrics_can_be_open_without_their_own_port() {
    assert!(parse("[metrics]\nopen = true").unwrap().metrics.open);
}

#[test]
fn all_mistakes_are_named_with_their_lines() {
    let text = r#"
lisen = ["stdio"]
log = 5
shutdown_grace = "5"
[limits]
sessions = 0
conections = 7
message_bytes = "64MB"
shutdown_grace = "1s"
requests_per_second = "many"
[auth]
owner_scope = "files:red"
users = [{ scope = "all" }]
token_sha256 = ["abc"]
[tls]
cert = "~/cert.pem"
client_ca = "ca.pem"
[server]
"#;
    assert_eq!(
        mistakes(text),
        [
            "2: unknown key `lisen`; did you mean `listen`?",
            "3: `log` is not a text; write `log = \"info\"`",
            "4: `shutdown_grace` is not a time such as \"500ms\", \"10s\", \"5m\" or \"24h\"; write `shutdown_grace = \"5s\"`",
            "6: cannot use `0` for `sessions`: it must not be 0; remove the key for its default",
            "7: unknown key `conections` in `[limits]`; did you mean `connections`?",
            "8: `message_bytes` is not a number of bytes such as \"64MiB\"; write `message_bytes = \"1MiB\"`",
            "9: unknown key `shutdown_grace` in `[limits]`; did you mean `shutdown_grace` at the top of the file?",
            "10: `requests_per_second` is not a number or \"unlimited\"; write `requests_per_second = 100`",
            "12: cannot use `files:red` for `owner_scope`: unknown scope `files:red`; use `all`, `processes[=MAX]`, \
             `processes:read`, `files:read[=/PATH]`, `files:write[=/PATH]`, `files:setid`, `http`, `metrics`, \
             `sandbox=read-only|workspace-write` or `admin`",
            "13: an entry of `users` has no `name`; add `name`",
            "14: cannot use `abc` for `token_sha256`: it is not a SHA-256 digest; give 64 hexadecimal digits",
            "16: cannot use `~/cert.pem` for `cert`: `~` is not expanded; write the whole path",
            "17: `tls.client_ca` has no effect without `tls.cert`; add `tls.cert`",
            "18: unknown key `server`; `remex serve --print-config` lists all keys",
        ]
    );
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line() {
    assert_eq!(mistakes("log = 'info'\nlisten = [\n"), ["2: unclosed array, expected `]`"]);
}

#[test]
fn a_reload_names_what_needs_a_restart() {
    let before = ServerConfig::default();
    let after =
        parse("listen = ['stdio']\nlog = 'debug'\n[limits]\nsessions = 5\nanswer_bytes = '1GiB'\n").unwrap();
    assert_eq!(before.needs_restart(&after), ["listen", "limits.answer_bytes"]);
    assert_eq!(before.needs_restart(&before), Vec::<String>::new());
}
