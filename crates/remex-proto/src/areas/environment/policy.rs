//! The environment variables of a child.
//!
//! Pure: the host's environment is an argument. Start at [`resolve`].

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use serde::{Deserialize, Serialize};

/// The variables of [`Inherit::Core`]; case is ignored, as for all names here.
const CORE: [&str; 11] =
    ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"];

const DEFAULT_EXCLUDES: [&str; 3] = ["*KEY*", "*SECRET*", "*TOKEN*"];

/// Secrets and settings of the server itself; no request can pass them to a child.
const NEVER: [&str; 6] = [
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "NODE_REPL_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
];

/// What a child inherits of the server's environment.
///
/// Patterns are globs with `*` and `?` that ignore case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    /// Where to start.
    pub inherit: Inherit,
    /// Keeps names with `KEY`, `SECRET` or `TOKEN` in them.
    pub ignore_default_excludes: bool,
    /// Patterns of names to drop.
    pub exclude: Vec<String>,
    /// Variables to add after that.
    pub set: BTreeMap<String, String>,
    /// Patterns of names to keep; empty: all.
    pub include_only: Vec<String>,
}

/// Where an [`EnvPolicy`] starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Inherit {
    /// From the server's whole environment.
    All,
    /// From the few variables that every program expects, such as `PATH` and `HOME`.
    Core,
    /// From nothing.
    None,
}

/// Returns the environment of a child, sorted by name.
///
/// Without a policy it is `env`; with one, `env` overrides what the policy keeps of `host`.
pub fn resolve(
    policy: Option<&EnvPolicy>,
    env: &BTreeMap<String, String>,
    host: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let mut resolved = policy.map_or_else(BTreeMap::new, |policy| inherit(policy, host));
    resolved.extend(pairs(env));
    resolved.retain(|name, _| !names(&NEVER, name));
    resolved.into_iter().collect()
}

/// Returns whether a variable that a program on the host has set may reach a child.
///
/// The exclusions of the policy and its `includeOnly` decide, as they do for the host's own variables.
pub fn passes(policy: Option<&EnvPolicy>, name: &OsStr) -> bool {
    let is_kept = policy.is_none_or(|policy| {
        !policy.excludes(name) && (policy.include_only.is_empty() || matches_any(&policy.include_only, name))
    });
    is_kept && !names(&NEVER, name)
}

impl EnvPolicy {
    fn excludes(&self, name: &OsStr) -> bool {
        (!self.ignore_default_excludes && matches_any(&DEFAULT_EXCLUDES, name))
            || matches_any(&self.exclude, name)
    }
}

fn inherit(
    policy: &EnvPolicy,
    host: impl IntoIterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_inherited = |name: &OsStr| match policy.inherit {
        Inherit::All => true,
        Inherit::Core => names(&CORE, name),
        Inherit::None => false,
    };
    let mut resolved: BTreeMap<_, _> =
        host.into_iter().filter(|(name, _)| is_inherited(name) && !policy.excludes(name)).collect();
    resolved.extend(pairs(&policy.set));
    if !policy.include_only.is_empty() {
        resolved.retain(|name, _| matches_any(&policy.include_only, name));
    }
    resolved
}

fn pairs(map: &BTreeMap<String, String>) -> impl Iterator<Item = (OsString, OsString)> {
    map.iter().map(|(name, value)| (name.into(), value.into()))
}

fn names(list: &[&str], name: &OsStr) -> bool {
    list.iter().any(|listed| name.eq_ignore_ascii_case(listed))
}

fn matches_any(patterns: &[impl AsRef<str>], name: &OsStr) -> bool {
    patterns.iter().any(|pattern| glob(pattern.as_ref().as_bytes(), name.as_encoded_bytes()))
}

/// Matches with a single backtracking point, so that no pattern takes more than quadratic time.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut last_star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                last_star = Some((p, n));
                p += 1;
            }
            Some(b'?') => {
                p += 1;
                n += character_len(&name[n..]);
            }
            Some(byte) if byte.eq_ignore_ascii_case(&name[n]) => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((star, from)) = last_star else { return false };
                let from = from + character_len(&name[from..]);
                last_star = Some((star, from));
                (p, n) = (star + 1, from);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of the first character, or 1 if the bytes are not UTF-8.
fn character_len(bytes: &[u8]) -> usize {
    let follows = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    if bytes[0] < 0b1100_0000 { 1 } else { 1 + bytes[1..].iter().take(3).take_while(follows).count() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use proptest::prelude::*;

    use super::*;

    fn host() -> Vec<(OsString, OsString)> {
        [("PATH", "/bin"), ("home", "/root"), ("API_KEY", "k"), ("my_token", "t"), ("EDITOR", "ed")]
            .map(|(name, value)| (name.into(), value.into()))
            .into()
    }

    fn policy(inherit: Inherit) -> EnvPolicy {
        EnvPolicy {
            inherit,
            ignore_default_excludes: false,
            exclude: vec![],
            set: BTreeMap::new(),
            include_only: vec![],
        }
    }

    fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    fn resolved_names(policy: Option<&EnvPolicy>, env: &BTreeMap<String, String>) -> Vec<String> {
        let resolved = resolve(policy, env, host());
        resolved.into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
    }

    #[test]
    fn without_a_policy_the_child_gets_exactly_the_given_environment() {
        let env = map([("A", "1"), ("B_KEY", "2")]);
        assert_eq!(resolve(None, &env, host()), pairs(&env).collect::<Vec<_>>());
    }

    #[test]
    fn a_policy_starts_from_all_from_the_core_or_from_nothing() {
        let none = BTreeMap::new();
        assert_eq!(resolved_names(Some(&policy(Inherit::All)), &none), ["EDITOR", "PATH", "home"]);
        assert_eq!(resolved_names(Some(&policy(Inherit::Core)), &none), ["PATH", "home"]);
        assert!(resolved_names(Some(&policy(Inherit::None)), &none).is_empty());
    }

    #[test]
    fn the_steps_of_a_policy_apply_in_order() {
        let policy = EnvPolicy {
            ignore_default_excludes: true,
            exclude: vec!["path".into(), "ed?tor".into()],
            set: map([("PATH", "/set"), ("EXTRA", "x")]),
            include_only: vec!["PA*".into(), "*key".into(), "*_tok?n".into()],
            ..policy(Inherit::All)
        };
        let resolved = resolve(Some(&policy), &map([("my_token", "mine"), ("UNLISTED", "u")]), host());
        let expected = [("API_KEY", "k"), ("PATH", "/set"), ("UNLISTED", "u"), ("my_token", "mine")];
        assert_eq!(resolved, expected.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn variables_set_by_a_program_pass_the_same_exclusions() {
        let passing = |policy: Option<&EnvPolicy>| {
            let names = ["PATH", "API_KEY", "EDITOR", "NODE_REPL_AUTH_TOKEN"];
            names.into_iter().filter(|name| passes(policy, OsStr::new(name))).collect::<Vec<_>>()
        };
        assert_eq!(passing(None), ["PATH", "API_KEY", "EDITOR"]);
        assert_eq!(passing(Some(&policy(Inherit::None))), ["PATH", "EDITOR"]);
        let open = EnvPolicy { ignore_default_excludes: true, ..policy(Inherit::All) };
        assert_eq!(
            passing(Some(&EnvPolicy { exclude: vec!["p*".into()], ..open.clone() })),
            ["API_KEY", "EDITOR"]
        );
        assert_eq!(passing(Some(&EnvPolicy { include_only: vec!["*or".into()], ..open })), ["EDITOR"]);
    }

    #[test]
    fn some_names_never_reach_a_child() {
        let env = map([("Node_Repl_Auth_Token", "1"), ("OPENAI_FEDERATION_RULE_ID", "1"), ("A", "1")]);
        assert_eq!(resolved_names(None, &env), ["A"]);
        let policy = EnvPolicy { ignore_default_excludes: true, set: env.clone(), ..policy(Inherit::None) };
        assert_eq!(resolved_names(Some(&policy), &env), ["A"]);
    }

    #[test]
    fn names_and_values_of_the_host_need_not_be_utf_8() {
        let raw = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let host = [(raw(b"N\xff"), raw(b"\xfe")), (raw(b"KEY\xff"), raw(b"x"))];
        let resolved = resolve(Some(&policy(Inherit::All)), &BTreeMap::new(), host);
        assert_eq!(resolved, [(raw(b"N\xff"), raw(b"\xfe"))]);
    }

    #[test]
    fn all_five_members_of_a_policy_are_required() {
        let whole =
            r#"{"inherit":"all","ignoreDefaultExcludes":true,"exclude":["A"],"set":{},"includeOnly":[]}"#;
        let value: serde_json::Value = serde_json::from_str(whole).unwrap();
        assert!(serde_json::from_value::<EnvPolicy>(value.clone()).is_ok());
        for name in value.as_object().unwrap().keys() {
            let mut partial = value.clone();
            partial.as_object_mut().unwrap().remove(name);
            let error = serde_json::from_value::<EnvPolicy>(partial).unwrap_err();
            assert_eq!(error.to_string(), format!("missing field `{name}`"));
        }
    }

    #[test]
    fn a_question_mark_is_one_character() {
        assert!(glob("A?B".as_bytes(), "AéB".as_bytes()));
        assert!(!glob(b"A?B", b"AB"));
        assert!(!glob(b"[A]", b"A"));
    }

    /// A simple, slow reference implementation.
    fn slow_glob(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|skip| slow_glob(rest, &name[skip..])),
            Some((b'?', rest)) => !name.is_empty() && slow_glob(rest, &name[1..]),
            Some((byte, rest)) => {
                name.first().is_some_and(|first| first.eq_ignore_ascii_case(byte))
                    && slow_glob(rest, &name[1..])
            }
        }
    }

    proptest! {
        #[test]
        fn a_glob_agrees_with_the_reference_implementation(pattern in "[ab*?]{0,8}", name in "[abAB]{0,10}") {
            let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(glob(pattern, name), slow_glob(pattern, name));
        }
    }
}
