//! Sessions of other identities, and what credentials limit besides paths.

use super::*;

fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap()
}

/// Starts a session with a process as `victim`; returns its client and the id of the session.
async fn victim(site: &TestServer) -> (Client, Value) {
    let mut client = site.client_as("victim", "all").await;
    client.start("p", "exec sleep 1000").await.unwrap();
    let listed = client.call("session/list", json!({})).await.unwrap();
    assert_eq!(listed["sessions"][0]["identity"], "token:victim");
    (client, listed["sessions"][0]["sessionId"].clone())
}

/// Every request that may name a session.
fn requests(session: &Value) -> Vec<(&'static str, Value)> {
    vec![
        ("process/read", json!({"processId": "p", "sessionId": session})),
        ("process/write", json!({"processId": "p", "sessionId": session, "chunk": "eA=="})),
        ("process/closeStdin", json!({"processId": "p", "sessionId": session})),
        ("process/release", json!({"processId": "p", "sessionId": session})),
        ("process/forget", json!({"processId": "p", "sessionId": session})),
        ("process/resize", json!({"processId": "p", "sessionId": session, "rows": 1, "cols": 1})),
        ("process/wait", json!({"processId": "p", "sessionId": session})),
        ("process/snapshot", json!({"processId": "p", "sessionId": session})),
        ("process/list", json!({"sessionId": session})),
        ("process/signal", json!({"processId": "p", "sessionId": session, "signal": "SIGKILL"})),
        ("process/terminate", json!({"processId": "p", "sessionId": session})),
        ("session/observe", json!({"sessionId": session})),
        ("session/unobserve", json!({"sessionId": session})),
        ("session/end", json!({"sessionId": session})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn one_identity_never_reaches_the_sessions_of_another() {
    let site = TestServer::new().await;
    let (mut victim, session) = victim(&site).await;
    let mut other = site.client_as("other", "all").await;
    for named in [&session, &json!("victim")] {
        for (method, params) in requests(named) {
            let error = other.call(method, params).await.unwrap_err();
            assert_eq!(kind(&error), "unknownSession", "{method}: {error}");
        }
        for takeover in [false, true] {
            for (name, scopes) in [("other", "all"), ("administrator", "admin")] {
                let mut client = site.connect_as(name, scopes);
                let resume = json!({"clientName": "c", "resumeSessionId": named, "takeover": takeover});
                let error = client.call("initialize", resume).await.unwrap_err();
                assert_eq!(kind(&error), "unknownSession", "{name}: {error}");
            }
        }
    }
    for method in ["session/list", "process/list"] {
        let error = other.call(method, json!({"scope": "all"})).await.unwrap_err();
        assert_eq!(kind(&error), "permissionDenied", "{error}");
        assert!(error["message"].as_str().unwrap().contains("needs the scope `admin`"), "{error}");
        let own = other.call(method, json!({"scope": "identity"})).await.unwrap().to_string();
        assert!(!own.contains("victim") && !own.contains(session.as_str().unwrap()), "{own}");
    }
    let listed = victim.call("process/list", json!({})).await.unwrap();
    assert_eq!(
        (&listed["processes"][0]["state"], &listed["processes"][0]["identity"]),
        (&json!("running"), &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_sees_observes_signals_and_ends_the_sessions_of_others() {
    let site = TestServer::new().await;
    let (mut victim, session) = victim(&site).await;
    let mut admin = site.client_as("root", "admin").await;
    let listed = admin.call("session/list", json!({"scope": "all"})).await.unwrap();
    let identities: Vec<_> =
        listed["sessions"].as_array().unwrap().iter().map(|session| &session["identity"]).collect();
    assert!(identities.contains(&&json!("token:victim")) && identities.contains(&&json!("token:root")));
    let listed = admin.call("process/list", json!({"scope": "all"})).await.unwrap();
    assert_eq!(listed["processes"][0]["identity"], "token:victim");
    let own = admin.call("session/list", json!({})).await.unwrap();
    assert_eq!(own["sessions"].as_array().unwrap().len(), 1, "only its own without the scope");
    let by_name = admin.call("session/end", json!({"sessionId": "victim"})).await.unwrap_err();
    assert_eq!(kind(&by_name), "unknownSession", "names belong to identities");
    admin.call("session/observe", json!({"sessionId": session})).await.unwrap();
    let signal = json!({"processId": "p", "sessionId": session, "signal": "SIGTERM"});
    admin.call("process/signal", signal).await.unwrap();
    assert_eq!(admin.note("process/exited", "p").await["sessionId"], session);
    victim.note("process/exited", "p").await;
    admin.call("session/end", json!({"sessionId": session})).await.unwrap();
    victim.end().await;
    let listed = admin.call("session/list", json!({"scope": "all"})).await.unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_processes_spans_all_sessions_of_one_identity_only() {
    let site = TestServer::new().await;
    let mut first = site.client_as("ci", "processes=2").await;
    let mut second = site.connect_as("ci", "processes=2");
    second.call("initialize", json!({"clientName": "second"})).await.unwrap();
    second.send(json!({"method": "initialized", "params": {}})).await;
    let mut other = site.client_as("other", "processes=2").await;
    first.start("a", "read line").await.unwrap();
    second.start("b", "exec sleep 1000").await.unwrap();
    for client in [&mut first, &mut second] {
        let error = client.start("c", "exit").await.unwrap_err();
        assert_eq!(kind(&error), "tooManyProcesses", "{error}");
        assert!(error["message"].as_str().unwrap().contains("`processes=2`"), "{error}");
    }
    other.start("a", "exit").await.unwrap();
    first.call("process/closeStdin", json!({"processId": "a"})).await.unwrap();
    first.note("process/closed", "a").await;
    let missing = json!({
        "processId": "m", "argv": ["/does/not/exist"], "cwd": "/", "env": {}, "tty": false
    });
    let error = second.call("process/start", missing).await.unwrap_err();
    assert_eq!(kind(&error), "programNotFound", "a failed start counts no longer: {error}");
    second.start("c", "exec sleep 1000").await.unwrap();
    let error = first.start("d", "exit").await.unwrap_err();
    assert_eq!(kind(&error), "tooManyProcesses", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_floor_in_the_scopes_confines_file_requests() {
    let site = TestServer::new().await;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let write = |sandbox: Value| json!({"path": file, "dataBase64": "bmV3", "sandbox": sandbox});
    let everything = json!({"permissions": {"type": "managed", "network": "enabled", "file_system":
        {"type": "unrestricted"}}, "windowsSandboxLevel": "disabled"});
    // Without a workspace, nothing can be written with either of them.
    for floor in ["sandbox=read-only", "sandbox=workspace-write"] {
        let mut client = site.client_as(floor, &format!("all {floor}")).await;
        client.call("fs/readFile", json!({"path": file})).await.unwrap();
        for sandbox in [Value::Null, everything.clone()] {
            let error = client.call("fs/writeFile", write(sandbox)).await.unwrap_err();
            assert_eq!(kind(&error), "permissionDenied", "{error}");
        }
        let missing = json!({"watchId": 1, "missing": [place.path().join("new")]});
        assert_eq!(client.call("fs/watchMissing", missing).await.unwrap(), json!({"watching": true}));
        let config = json!({"cwd": "/", "configPaths": [["a"]], "requirementsPaths": []});
        client.call("environmentConfig/read", config).await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_floor_in_the_scopes_confines_processes() {
    let site = TestServer::new().await;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    let script = format!("echo x > '{}' || exit 7", file.display());
    for floor in ["sandbox=read-only", "sandbox=workspace-write"] {
        let mut client = site.client_as(floor, &format!("all {floor}")).await;
        client.start("p", &script).await.unwrap();
        assert_eq!(client.note("process/exited", "p").await["exitCode"], 7, "{floor}");
        assert!(!file.exists(), "{floor}");
    }
}
