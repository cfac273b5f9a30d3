//! Which calls may be repeated after a disconnect.

use remex_proto::{Call, state::pending::AfterDisconnect};

/// Returns whether an unanswered call may be sent again after a disconnect.
pub(super) fn after_disconnect(call: &Call) -> AfterDisconnect {
    let is_repeatable = match call {
        Call::ProcessStart(start) => start.start_id.is_some(),
        Call::ProcessRestart(restart) => restart.restart_id.is_some(),
        Call::ProcessWrite(write) => write.write_id.is_some(),
        // These are idempotent.
        Call::ProcessRead(_)
        | Call::ProcessTerminate(_)
        | Call::ProcessCloseStdin(_)
        | Call::ProcessRelease(_)
        | Call::ProcessResize(_)
        | Call::ProcessWait(_)
        | Call::ProcessSnapshot(_)
        | Call::ProcessList(_)
        | Call::ProcessSeek(_)
        | Call::ProcessCollect(_)
        | Call::SessionList(_)
        | Call::SessionEnd(_)
        | Call::FsReadFile(_)
        | Call::FsGetMetadata(_)
        | Call::FsCanonicalize(_)
        | Call::FsReadDirectory(_)
        | Call::FsWalk(_)
        | Call::FsSetPermissions(_)
        | Call::FsSetTimes(_)
        | Call::FsReadLink(_)
        | Call::FsHash(_)
        | Call::FsSearch(_)
        | Call::EnvironmentInfo(_)
        | Call::EnvironmentStatus(_)
        | Call::EnvironmentConfigRead(_)
        | Call::CapabilityRootsDiscover(_)
        | Call::CapabilitiesDiscover(_) => true,
        Call::FsWriteFile(write) => write.if_match.is_none(),
        Call::FsCreateDirectory(create) => create.recursive != Some(false),
        Call::HttpRequest(request) => {
            !request.stream_response && ["GET", "HEAD", "OPTIONS"].contains(&request.method.as_str())
        }
        // Repeating these fails or has another effect, or their handle was closed with the connection.
        Call::Initialize(_)
        | Call::ProcessSignal(_)
        | Call::ProcessForget(_)
        | Call::SessionObserve(_)
        | Call::SessionUnobserve(_)
        | Call::FsRemove(_)
        | Call::FsCopy(_)
        | Call::FsOpen(_)
        | Call::FsReadBlock(_)
        | Call::FsWriteBlock(_)
        | Call::FsClose(_)
        | Call::FsWatchMissing(_)
        | Call::FsRename(_)
        | Call::FsSymlink(_)
        | Call::FsWatch(_)
        | Call::FsUnwatch(_) => false,
    };
    if is_repeatable { AfterDisconnect::Resend } else { AfterDisconnect::Fail }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use remex_proto::call::METHODS;
    use serde_json::{Value, json};

    use super::*;

    fn document(name: &str) -> String {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
    }

    /// Returns what the table of `PROTOCOL.md` says about each method: `yes`, `no` or `if`.
    fn documented() -> BTreeMap<String, String> {
        let text = document("PROTOCOL.md");
        let (_, rest) = text.split_once("<!-- again: begin -->").unwrap();
        let (table, _) = rest.split_once("<!-- again: end -->").unwrap();
        let mut documented = BTreeMap::new();
        for row in table.lines().filter(|line| line.starts_with("| `")) {
            let [methods, again, _] = row.trim_matches('|').split('|').collect::<Vec<_>>()[..] else {
                panic!("{row}");
            };
            for method in methods.split(',').map(|method| method.trim().trim_matches('`')) {
                let other = documented.insert(method.to_owned(), again.trim().to_owned());
                assert_eq!(other, None, "`{method}` is in the table twice");
            }
        }
        documented
    }

    fn resends(method: &str, params: &Value) -> bool {
        let call = Call::parse(method, Some(&params.to_string())).unwrap();
        after_disconnect(&call) == AfterDisconnect::Resend
    }

    #[test]
    fn the_protocol_description_states_which_calls_are_retried() {
        let documented = documented();
        let methods: Vec<_> = METHODS.iter().map(|method| method.name).collect();
        assert!(documented.keys().all(|method| methods.contains(&method.as_str())), "{documented:?}");
        for line in document("spec/examples.md").lines().filter(|line| line.starts_with(r#"{"id":"#)) {
            let message: Value = serde_json::from_str(line).unwrap();
            let Some(method) = message["method"].as_str().filter(|method| methods.contains(method)) else {
                continue;
            };
            let params = message.get("params").cloned().unwrap_or_else(|| json!({}));
            match documented[method].as_str() {
                "yes" => assert!(resends(method, &params), "{line}"),
                "no" => assert!(!resends(method, &params), "{line}"),
                again => assert_eq!(again, "if", "`{method}`"),
            }
        }
        for method in methods {
            assert!(documented.contains_key(method), "`{method}` is missing in the table");
        }
    }

    #[test]
    fn the_conditions_in_the_description_are_those_of_the_client() {
        let start = json!({"processId": "p", "argv": ["a"], "cwd": "/", "env": {}, "tty": false});
        let process = json!({"processId": "p"});
        let write = json!({"processId": "p", "chunk": ""});
        let file = json!({"path": "/a", "dataBase64": ""});
        let (directory, request) = (json!({"path": "/a"}), json!({"url": "http://a/", "requestId": "r"}));
        let cases = [
            ("process/start", &start, json!({"startId": "s"}), json!({})),
            ("process/restart", &process, json!({"restartId": "r"}), json!({})),
            ("process/write", &write, json!({"writeId": "w"}), json!({})),
            ("fs/writeFile", &file, json!({}), json!({"ifMatch": "absent"})),
            ("fs/createDirectory", &directory, json!({}), json!({"recursive": false})),
            ("fs/createDirectory", &directory, json!({"recursive": true}), json!({"recursive": false})),
            ("http/request", &request, json!({"method": "GET"}), json!({"method": "POST"})),
            ("http/request", &request, json!({"method": "HEAD"}), json!({"method": "PUT"})),
            (
                "http/request",
                &request,
                json!({"method": "OPTIONS"}),
                json!({"method": "GET", "streamResponse": true}),
            ),
        ];
        let with = |base: &Value, more: &Value| {
            let mut params = base.as_object().unwrap().clone();
            params.extend(more.as_object().unwrap().clone());
            Value::Object(params)
        };
        for (method, base, again, not) in &cases {
            assert!(resends(method, &with(base, again)), "{method} {again}");
            assert!(!resends(method, &with(base, not)), "{method} {not}");
        }
        let conditional =
            documented().into_iter().filter(|(_, again)| again == "if").map(|(method, _)| method);
        for method in conditional {
            assert!(cases.iter().any(|(tried, ..)| *tried == method), "no case for `{method}`");
        }
    }
}
