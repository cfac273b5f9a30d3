//! The table of decisions, in memory and on disk; and the profiles that a recorded client sent.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use remex_proto::sandbox::{Network, Sandbox};
use remex_sandbox::{
    Access, Host, Policy, PolicyError, Preset, Request, SystemHost, resolve,
    testing::{Expected, Scenario, Tree, scenarios},
};
use serde_json::Value;

/// Returns a policy after serializing and deserializing it, as another process receives it.
fn travelled(policy: &Policy) -> Policy {
    postcard::from_bytes(&postcard::to_stdvec(policy).unwrap()).unwrap()
}

/// Fails where the host decides otherwise than the table.
fn check(scenario: &Scenario, host: &impl Host) {
    let name = &scenario.name;
    let (cases, obstacles) = match &scenario.expected {
        Expected::Refused(reason) => {
            let error = scenario.resolve(host).expect_err(name);
            assert!(error.to_string().contains(reason), "{name}: {error}");
            let received: PolicyError = postcard::from_bytes(&postcard::to_stdvec(&error).unwrap()).unwrap();
            assert_eq!(received, error, "{name}");
            assert!(!error.hint.is_empty());
            return;
        }
        Expected::Resolved { cases, obstacles } => (cases, obstacles),
    };
    let policy = scenario.resolve(host).unwrap_or_else(|error| panic!("{name}: {error}"));
    let received = travelled(&policy);
    assert_eq!(received, policy, "{name}");
    for (case, policy) in cases.iter().flat_map(|case| [(case, &policy), (case, &received)]) {
        let decided = case.decide(policy, host).unwrap_or_else(|error| panic!("{name}: {case:?}: {error}"));
        assert_eq!(decided, case.is_allowed, "{name}: {case:?} with {policy:#?}");
    }
    let found: Vec<_> = policy.unenforceable_rules().map(|obstacle| obstacle.rule.path.clone()).collect();
    assert_eq!(&found, obstacles, "{name}");
}

#[test]
fn every_decision_is_that_of_the_table() {
    let scenarios = scenarios(Path::new("/base"));
    scenarios.iter().for_each(|scenario| check(scenario, &scenario.tree));
    let names: BTreeSet<_> = scenarios.iter().map(|scenario| &scenario.name).collect();
    assert_eq!(names.len(), scenarios.len(), "two scenarios have the same name");
}

#[test]
fn decisions_on_disk_are_those_of_the_table() {
    let parent = fs::canonicalize(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = tempfile::tempdir_in(parent).unwrap();
    for (number, _) in scenarios(directory.path()).iter().enumerate() {
        let base = directory.path().join(number.to_string());
        fs::create_dir(&base).unwrap();
        let scenario = scenarios(&base).swap_remove(number);
        scenario.tree.create(&base).unwrap();
        check(&scenario, &SystemHost);
    }
}

/// Returns the sandbox contexts in a recorded session.
fn recorded(name: &str) -> Vec<Sandbox> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/transcripts").join(name);
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let sandboxes = lines.map(|mut line| line["msg"]["params"]["sandbox"].take());
    sandboxes.filter(Value::is_object).map(|sandbox| serde_json::from_value(sandbox).unwrap()).collect()
}

#[test]
fn the_presets_match_a_recorded_client() {
    for preset in Preset::ALL {
        let contexts = recorded(&format!("sandbox-{}.jsonl", preset.name()));
        let confined: Vec<_> = contexts
            .into_iter()
            .filter_map(|sandbox| match sandbox {
                Sandbox::Disabled => None,
                Sandbox::Confined(context) => Some(context),
            })
            .collect();
        assert!(!confined.is_empty(), "{}", preset.name());
        for context in confined {
            assert_eq!(context.permissions, preset.permissions());
            let root = context.cwd.clone().unwrap().native().unwrap().to_owned();
            let tree = Tree::new([&*format!("{}/.git/config", root.display()), "/tmp/"]);
            let request = Request { context: &context, cwd: None, tmpdir: Some("/tmp".as_ref()) };
            let policy = resolve(&request, &tree).unwrap();
            let in_workspace = match preset {
                Preset::ReadOnly => Access::Read,
                Preset::WorkspaceWrite => Access::Write,
            };
            assert_eq!(policy.access(&root.join("file")), in_workspace);
            assert_eq!(policy.access(&root.join(".git/config")), Access::Read);
            assert_eq!(policy.access(Path::new("/tmp/file")), Access::Read);
            assert_eq!(policy.network(), Network::Restricted);
            assert_eq!(policy.temporary_directories(), [] as [PathBuf; 0]);
            assert_eq!(policy.unenforceable_rules().count(), 0);
            assert!(!policy.is_open());
        }
        assert_eq!(Preset::from_name(preset.name()), Some(preset));
    }
}

#[test]
fn an_unenforceable_rule_is_explained_with_a_hint() {
    let scenarios = scenarios(Path::new("/base"));
    let errors = scenarios.iter().filter_map(|scenario| {
        let policy: Policy = scenario.resolve(&scenario.tree).ok()?;
        let error: PolicyError = policy.unenforceable_rules().next()?.into();
        Some((error.to_string(), error.hint))
    });
    let link = "cannot apply `read` to `/base/w/.git`: `/base/w/.git` is a symbolic link in a writable directory, \
                so a process could replace it";
    let missing = "cannot apply `deny` to `/base/w/a/.env`: `/base/w/a/.env` does not exist in a writable directory, \
                   so a process could create it";
    let errors: BTreeSet<_> = errors.collect();
    for (message, hint) in [
        (link, "replace the link by what it leads to, or remove the entry"),
        (missing, "create the directory above it, or add `missing_path_behavior: \"skip\"` to the entry"),
    ] {
        assert!(errors.contains(&(message.to_owned(), hint)), "{errors:#?}");
    }
}
