//! Decoders of short texts: base64, paths, patterns, addresses.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Component, Path, PathBuf},
};

use remex::server_config::{ConfigErrors, ServerConfig};
use remex_client::environment::{DefinitionErrors, Definitions, Id, LocalInclusion};
use remex_proto::{
    Blob, HostPath, blob,
    environment::{EnvPolicy, Inherit, resolve},
};
use remex_rpc::ListenAddress;

/// Base64 decodes exactly what some bytes encode to, and any bytes survive.
pub fn blob(data: &[u8]) {
    let mut encoded = Vec::new();
    blob::encode_into(data, &mut encoded);
    assert_eq!(encoded.len(), blob::encoded_len(data.len()));
    let encoded = String::from_utf8(encoded).unwrap();
    assert_eq!(encoded, slow_base64(data));
    assert_eq!(blob::decode(&encoded).unwrap(), Blob::from(data.to_vec()));

    let Ok(text) = std::str::from_utf8(data) else { return };
    let decoded = blob::decode(text);
    if let Ok(bytes) = &decoded {
        assert_eq!(slow_base64(bytes), text, "another spelling of the same bytes was accepted");
    }
    let json = serde_json::to_string(text).unwrap();
    assert_eq!(serde_json::from_str::<Blob>(&json).ok(), decoded.ok());
}

/// What base64 means, without care for time.
fn slow_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0usize, |bits, at| bits << 8 | usize::from(*group.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let symbol = if at <= group.len() { ALPHABET[bits >> (18 - 6 * at) & 63] } else { b'=' };
            text.push(char::from(symbol));
        }
    }
    text
}

/// A path that is accepted names an absolute path, and its URI names the same one.
pub fn host_path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parsed = HostPath::parse(text);
    let json = serde_json::to_string(text).unwrap();
    assert_eq!(serde_json::from_str::<HostPath>(&json).ok(), parsed.clone().ok());
    let Ok(path) = parsed else { return };
    assert_eq!(path.to_string(), text);

    let uri = path.to_uri();
    let again = HostPath::parse(&uri).unwrap();
    match path.native() {
        Ok(native) => {
            assert!(native.is_absolute() && !native.as_os_str().as_bytes().contains(&0), "{native:?}");
            assert!(uri.is_ascii(), "{uri}");
            assert_eq!(again.native(), Ok(&*resolved(native)), "{uri} does not name {native:?}");
            let is_plain = text.starts_with('/');
            assert!(is_plain || resolved(native).as_os_str() == native.as_os_str(), "{native:?}");
        }
        Err(_) => assert_eq!((&again, &*uri), (&path, text)),
    }
}

/// What the text alone of a path says, whatever links there are.
fn resolved(native: &Path) -> PathBuf {
    native.components().fold(PathBuf::new(), |mut resolved, component| {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            component => resolved.push(component),
        }
        resolved
    })
}

/// The first line is a pattern and the rest a name; both ways to use a pattern agree with what it means.
pub fn env_policy(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (Some(pattern), Some(name)) = (parts.next(), parts.next()) else { return };
    let Ok(pattern) = String::from_utf8(pattern.to_vec()) else { return };
    let host = [(OsString::from_vec(name.to_vec()), OsString::from("value"))];
    let policy = |exclude: &[&String], include_only: &[&String]| EnvPolicy {
        inherit: Inherit::All,
        ignore_default_excludes: true,
        exclude: exclude.iter().map(ToString::to_string).collect(),
        set: BTreeMap::new(),
        include_only: include_only.iter().map(ToString::to_string).collect(),
    };
    let keeps =
        |policy: &EnvPolicy| !resolve(Some(policy), &BTreeMap::new(), host.iter().cloned()).is_empty();

    let everything = policy(&[], &[]);
    let by_default = EnvPolicy { ignore_default_excludes: false, ..everything.clone() };
    let is_never_handed_on = !keeps(&everything);
    assert_eq!(keeps(&by_default), !is_never_handed_on && !sounds_secret(OsStr::from_bytes(name)));
    if is_never_handed_on {
        return;
    }
    let included = keeps(&policy(&[], &[&pattern]));
    assert_eq!(keeps(&policy(&[&pattern], &[])), !included);
    if let Ok(name) = std::str::from_utf8(name) {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        assert_eq!(included, slow_glob(&chars(&pattern), &chars(name)), "{pattern:?} and {name:?}");
    }
}

fn sounds_secret(name: &OsStr) -> bool {
    let name = name.to_ascii_uppercase();
    let has = |word: &str| name.as_bytes().windows(word.len()).any(|part| part == word.as_bytes());
    has("KEY") || has("SECRET") || has("TOKEN")
}

/// What a glob means: column by column, which beginnings of the name a beginning of the pattern matches.
fn slow_glob(pattern: &[char], name: &[char]) -> bool {
    let mut matched = vec![false; name.len() + 1];
    matched[0] = true;
    for symbol in pattern {
        if *symbol == '*' {
            let shortest = matched.iter().position(|matched| *matched).unwrap_or(matched.len());
            matched[shortest..].fill(true);
        } else {
            for at in (0..name.len()).rev() {
                let fits = *symbol == '?' || symbol.eq_ignore_ascii_case(&name[at]);
                matched[at + 1] = matched[at] && fits;
            }
            matched[0] = false;
        }
    }
    matched[name.len()]
}

/// An address that is accepted is printed as something that reads as the same address.
pub fn listen_address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<ListenAddress>() {
        Ok(address) => {
            let printed = address.to_string();
            assert_eq!(printed.parse(), Ok(address.clone()), "{printed}");
            match address {
                ListenAddress::Stdio => assert!(matches!(text, "stdio" | "stdio://")),
                ListenAddress::Unix(path) => {
                    assert_eq!(printed, text);
                    assert!(path.is_absolute());
                }
                ListenAddress::WebSocket(_) => assert!(text.starts_with("ws://")),
                ListenAddress::SecureWebSocket(_) => assert!(text.starts_with("wss://")),
            }
        }
        Err(error) => assert!(error.to_string().contains(&format!("`{text}`"))),
    }
}

/// An environments file is accepted with a default that is there, or each mistake is on one of its lines and told on
/// one line.
pub fn environments(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Definitions::parse(text, Path::new("environments.toml")) {
        Ok(draft) => {
            let definitions = draft.with_tokens(|_| Ok("token".to_owned())).unwrap();
            let is_there = |id: &Id| match definitions.local {
                LocalInclusion::Included if *id == Id::local() => true,
                _ => definitions.find(id).is_some(),
            };
            assert!(definitions.default.as_ref().is_none_or(is_there));
        }
        Err(DefinitionErrors(mistakes)) => {
            assert!(!mistakes.is_empty() && mistakes.is_sorted_by_key(|mistake| mistake.line));
            for mistake in &mistakes {
                assert!((1..=text.split('\n').count()).contains(&mistake.line), "{mistake}");
                assert_eq!(mistake.to_string().lines().count(), 1, "{mistake}");
            }
        }
    }
}

/// A configuration that is accepted prints as one that means the same; mistakes are in the order of existing lines.
pub fn server_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ServerConfig::parse(text, Path::new("/etc/server.toml")) {
        Ok(config) => {
            let printed = config.to_toml();
            let again = ServerConfig::parse(&printed, Path::new("/elsewhere/server.toml"));
            assert_eq!(again, Ok(config), "{printed}");
        }
        Err(ConfigErrors(errors)) => {
            assert!(!errors.is_empty());
            assert!(errors.is_sorted_by(|a, b| a.line < b.line), "one mistake a line, in order");
            let lines = text.split('\n').count();
            for error in errors {
                assert!((1..=lines).contains(&error.line), "line {} of {lines}", error.line);
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
}
