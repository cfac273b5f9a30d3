//! The table of decisions: file requests agree with the policy in every case.

use std::{
    fs,
    path::{Path, PathBuf},
};

use remex_sandbox::{
    Action,
    testing::{Case, Expected, Scenario, scenarios},
};
use serde_json::{Value, json};

use crate::support::{Client, Server, encode, uri, with};

#[test]
fn file_requests_agree_with_the_policy_in_every_case() {
    let server = Server::start();
    let client = server.client();
    let parent = fs::canonicalize(env!("CARGO_TARGET_TMPDIR")).expect("a directory for tests");
    let directory = tempfile::tempdir_in(parent).expect("there is room for a directory");
    let mut cases = 0;
    for number in 0..scenarios(directory.path()).len() {
        let fresh = |name: &str| {
            let base = directory.path().join(format!("{number}-{name}"));
            fs::create_dir(&base).expect("there is room for a directory");
            let scenario = scenarios(&base).swap_remove(number);
            scenario.tree.create(&base).expect("there is room for a tree");
            Site { client: &client, sandbox: context(&scenario), scenario, base }
        };
        let site = fresh("all");
        match &site.scenario.expected {
            Expected::Refused(reason) => site.check_refusal(reason),
            Expected::Resolved { cases: of_scenario, .. } => {
                for (at, case) in of_scenario.iter().enumerate() {
                    cases += 1;
                    for attempt in 0..site.attempts(case).len() {
                        fresh(&format!("{at}-{attempt}")).check(at, attempt);
                    }
                }
            }
        }
    }
    assert!(cases >= 255, "there are only {cases} cases");
}

fn context(scenario: &Scenario) -> Value {
    let mut context = serde_json::to_value(&scenario.context).expect("a context can be sent");
    if let Some(tmpdir) = &scenario.tmpdir {
        context["temporaryDirectories"] = json!([uri(tmpdir)]);
    }
    context
}

/// A scenario on disk.
struct Site<'a> {
    client: &'a Client,
    sandbox: Value,
    scenario: Scenario,
    base: PathBuf,
}

/// One way to carry out an action.
struct Attempt {
    /// Requests that only lead there, and may fail.
    before: Vec<(&'static str, Value)>,
    method: &'static str,
    params: Value,
}

impl Site<'_> {
    fn call(&self, method: &str, params: &Value) -> Result<Value, Value> {
        self.client.call(method, with(params.clone(), json!({"sandbox": self.sandbox})))
    }

    fn check_refusal(&self, reason: &str) {
        for method in ["fs/readFile", "fs/getMetadata"] {
            let error = self.call(method, &json!({"path": uri(&self.base.join("w"))})).expect_err(reason);
            assert_eq!(error["code"], -32602, "{}: {error}", self.scenario.name);
            assert!(error.to_string().contains(reason), "{}: {error}", self.scenario.name);
        }
    }

    fn check(&self, case: usize, attempt: usize) {
        let Expected::Resolved { cases, .. } = &self.scenario.expected else { return };
        let case = &cases[case];
        let Attempt { before, method, params } = self.attempts(case).swap_remove(attempt);
        let before: Vec<_> = before.iter().map(|(method, params)| self.call(method, params)).collect();
        let answer = self.call(method, &params);
        let is_denied = |answer: &Result<_, Value>| {
            answer.as_ref().is_err_and(|error| error["data"]["kind"] == "permissionDenied")
        };
        let context =
            format!("{}: {case:?} by {method} {params}: {answer:?} after {before:?}", self.scenario.name);
        match case.is_allowed {
            true => assert!(!is_denied(&answer) && !before.iter().any(is_denied), "{context}"),
            // Where even the directory is missing, nothing else needs to be said.
            false if case.path.parent().is_some_and(|parent| !parent.exists()) => {
                assert!(answer.is_err(), "{context}");
            }
            false => assert!(is_denied(&answer) || before.iter().any(is_denied), "{context}"),
        }
        self.client.call("fs/close", json!({"handleId": "h"})).expect("closing never fails");
        self.client.call("fs/unwatch", json!({"watchId": 1})).expect("the end of a watch never fails");
        // An allowed action works, unless what it is about does not exist, or the system itself refuses it.
        let is_ours = case.path.starts_with(&self.base);
        if case.is_allowed && is_ours && (case.action != Action::Read || case.path.exists()) {
            assert!(answer.is_ok(), "{context}");
        }
        if case.action == Action::Create && !is_ours && answer.is_ok() {
            fs::remove_dir(&case.path).expect("it was created here");
        }
    }

    /// Returns the ways to carry out an action.
    fn attempts(&self, case: &Case) -> Vec<Attempt> {
        let path = uri(&case.path);
        let is_ours = case.path.starts_with(&self.base);
        let is_directory = case.path.is_dir();
        let is_link = case.path.is_symlink();
        let one = |method, params: Value| Attempt { before: Vec::new(), method, params };
        let only = |params: Value| with(json!({"path": path}), params);
        let data = json!({"dataBase64": encode("new")});
        let options =
            json!({"maxDepth": 0, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": true});
        let parent = case.path.parent().map(|parent| json!({"path": uri(parent), "recursive": true}));
        let after_parent = |method, params: Value| Attempt {
            before: parent.iter().map(|parent| ("fs/createDirectory", parent.clone())).collect(),
            method,
            params,
        };
        match case.action {
            Action::Read if is_directory => vec![
                one("fs/readDirectory", only(json!({}))),
                one("fs/walk", only(json!({"options": options}))),
                one("fs/search", only(json!({"options": {"maxDepth": 0}}))),
                one("fs/watch", only(json!({"watchId": 1, "recursive": false}))),
                one("fs/canonicalize", only(json!({}))),
            ],
            Action::Read => vec![
                one("fs/readFile", only(json!({}))),
                one("fs/hash", only(json!({}))),
                one("fs/search", only(json!({"options": {"pattern": "x"}}))),
                one("fs/open", only(json!({"handleId": "h", "mode": "read"}))),
                one("fs/getMetadata", only(json!({}))),
                one("fs/canonicalize", only(json!({}))),
            ],
            // Nothing of the system is at risk if this is not refused.
            Action::Write if !is_ours => {
                vec![one("fs/setTimes", only(json!({"accessedAtMs": 1_000_000_000_000_i64})))]
            }
            Action::Write if is_directory => vec![
                one("fs/setTimes", only(json!({"modifiedAtMs": 1}))),
                one("fs/setPermissions", only(json!({"mode": 0o755}))),
            ],
            Action::Write => vec![
                one("fs/writeFile", only(data)),
                one("fs/open", only(json!({"handleId": "h", "mode": "replace"}))),
                one("fs/open", only(json!({"handleId": "h", "mode": "write"}))),
                one("fs/setTimes", only(json!({"modifiedAtMs": 1}))),
                one("fs/setPermissions", only(json!({"mode": 0o644}))),
            ],
            Action::Create if !is_ours => vec![one("fs/createDirectory", only(json!({"recursive": false})))],
            Action::Create if is_link => vec![
                one("fs/writeFile", only(data.clone())),
                one("fs/writeFile", only(with(data, json!({"atomic": true})))),
            ],
            Action::Create => vec![
                one("fs/createDirectory", only(json!({"recursive": true}))),
                after_parent("fs/writeFile", only(data.clone())),
                after_parent("fs/writeFile", only(with(data, json!({"atomic": true})))),
                after_parent("fs/symlink", only(json!({"target": "x"}))),
                after_parent("fs/createDirectory", only(json!({"recursive": false}))),
                after_parent("fs/open", only(json!({"handleId": "h", "mode": "write"}))),
            ],
            Action::Remove if !is_ours => vec![one("fs/remove", only(json!({"recursive": false})))],
            Action::Remove => vec![
                one("fs/remove", only(json!({"recursive": true}))),
                one("fs/rename", json!({"sourcePath": path, "destinationPath": uri(&sibling(&case.path))})),
            ],
        }
    }
}

fn sibling(path: &Path) -> PathBuf {
    path.with_file_name("renamed")
}
