//! Finding plugins and skills on the host.

use serde_json::{Value, json};

use crate::support::{Client, Guarded, Place, Server, program, token_of};

/// Asks for one root.
fn root(client: &Client, place: &Place, name: &str) -> Value {
    let params = json!({"roots": [{"id": name, "path": place.uri(name)}]});
    let mut answer = client.call("capabilityRoots/discoverV1", params).expect("an answer");
    answer["roots"][0].take()
}

fn file(place: &Place, name: &str, contents: &str) -> Value {
    json!({"path": place.uri(name), "contents": contents})
}

/// Returns the paths of the skills below the place.
fn skills(place: &Place, root: &Value) -> Vec<String> {
    let base = place.uri("");
    let skills = root["skills"].as_array().expect("a list");
    let paths = skills.iter().map(|skill| skill["instructions"]["path"].as_str().expect("a path"));
    paths.map(|path| path.strip_prefix(&base).expect("it is below the place").to_owned()).collect()
}

fn warnings(answer: &Value) -> String {
    answer["warnings"].to_string()
}

#[test]
fn a_plugin_is_found_with_its_configuration_and_skills() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    let manifest = r#"{"name":"p"}"#;
    place.write("p/.codex-plugin/plugin.json", manifest);
    place.write("p/.claude-plugin/plugin.json", "ignored");
    place.write("p/.mcp.json", "{}");
    place.write("p/skills/b/SKILL.md", "b");
    place.write("p/skills/a é/SKILL.md", "a");
    place.write("p/skills/a é/agents/openai.yaml", "policy: {}");
    place.write("p/nested/.cursor-plugin/plugin.json", "not JSON");
    assert_eq!(
        root(&client, &place, "p"),
        json!({
            "id": "p",
            "path": place.uri("p"),
            "plugin": {
                "manifest": file(&place, "p/.codex-plugin/plugin.json", manifest),
                "mcpConfig": file(&place, "p/.mcp.json", "{}"),
                "appsConfig": null,
            },
            "skills": [
                {
                    "instructions": {"path": format!("{}/skills/a%20%C3%A9/SKILL.md", place.uri("p")), "contents": "a"},
                    "metadata": {
                        "path": format!("{}/skills/a%20%C3%A9/agents/openai.yaml", place.uri("p")),
                        "contents": "policy: {}",
                    },
                },
                {"instructions": file(&place, "p/skills/b/SKILL.md", "b"), "metadata": null},
            ],
            "namespaceManifests": [
                file(&place, "p/.codex-plugin/plugin.json", manifest),
                file(&place, "p/nested/.cursor-plugin/plugin.json", "not JSON"),
            ],
            "warnings": [],
            "error": null,
        })
    );
}

#[test]
fn a_manifest_names_files_inside_its_plugin_only() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("secret.json", "secret");
    for (name, servers, expected, warning) in [
        ("named", r#""./own.json""#, json!("own"), ""),
        ("missing", r#""./missing.json""#, Value::Null, ""),
        ("inline", "{}", Value::Null, ""),
        ("absolute", r#""/etc/passwd""#, json!("usual"), "path must start with `./`"),
        ("outside", r#""./../secret.json""#, json!("usual"), "path must stay inside the plugin"),
    ] {
        place.write(&format!("{name}/.claude-plugin/plugin.json"), format!(r#"{{"mcpServers":{servers}}}"#));
        place.write(&format!("{name}/own.json"), "own");
        place.write(&format!("{name}/.mcp.json"), "usual");
        let found = root(&client, &place, name);
        assert_eq!(found["plugin"]["mcpConfig"]["contents"], expected, "{name}");
        assert!(warnings(&found).contains(warning), "{name}: {found}");
        assert_eq!(found["warnings"] == json!([]), warning.is_empty(), "{name}: {found}");
    }
}

#[test]
fn links_depth_and_special_files_do_not_stop_discovery() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("r/1/2/3/4/5/6/SKILL.md", "deep");
    place.write("r/1/2/3/4/5/6/7/SKILL.md", "too deep");
    place.write("elsewhere/s/SKILL.md", "linked");
    place.link("../elsewhere", "r/away");
    place.link(".", "r/loop");
    place.link("..", "r/1/up");
    place.link("nowhere", "r/broken");
    place.make(&["r/fifo", "r/link", "r/directory/SKILL.md"]);
    place.fifo("r/fifo/SKILL.md");
    place.link("../1/2/3/4/5/6/SKILL.md", "r/link/SKILL.md");
    place.write("r/bytes/SKILL.md", b"a\xffb");
    place.write("r/long/SKILL.md", "x".repeat((1 << 20) + 1));
    place.write("r/whole/SKILL.md", "x".repeat(1 << 20));
    let found = root(&client, &place, "r");
    let expected = ["r/1/2/3/4/5/6/SKILL.md", "r/away/s/SKILL.md", "r/whole/SKILL.md"];
    assert_eq!(skills(&place, &found), expected);
    assert_eq!(
        found["warnings"],
        json!([
            format!(
                "capability file {} is not UTF-8: invalid utf-8 sequence of 1 bytes from index 1",
                place.uri("r/bytes/SKILL.md")
            ),
            format!("capability file {} exceeds the 1048576-byte limit", place.uri("r/long/SKILL.md")),
        ])
    );
}

#[test]
fn discovery_stops_at_its_limits_and_reports_it() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("many/SKILL.md", "first");
    for number in 0..10_010 {
        place.make(&[&format!("many/d{number:05}")]);
    }
    let found = root(&client, &place, "many");
    assert_eq!(skills(&place, &found), ["many/SKILL.md"]);
    assert!(warnings(&found).contains("reached its traversal limit"), "{}", warnings(&found));

    for number in 0..10 {
        place.write(&format!("text/{number}/SKILL.md"), "x".repeat(1 << 20));
    }
    let found = root(&client, &place, "text");
    assert_eq!(skills(&place, &found).len(), 8);
    assert!(warnings(&found).contains("bytes of text in one answer"), "{}", warnings(&found));
}

#[test]
fn a_failing_root_does_not_affect_others() {
    let (server, place) = (Server::start(), Place::new());
    let client = server.client();
    place.write("file", "");
    place.write("good/SKILL.md", "good");
    let profile = |readable: &str| {
        json!({
            "permissions": {
                "type": "managed",
                "file_system": {"type": "restricted", "entries": [
                    {"path": {"type": "path", "path": place.uri(readable)}, "access": "read"},
                ]},
                "network": "restricted",
            },
            "windowsSandboxLevel": "disabled",
        })
    };
    let roots = json!([
        {"id": "a", "path": place.uri("missing")},
        {"id": "a", "path": place.uri("file")},
        {"id": "b", "path": "file://server/x"},
        {"id": "c", "path": place.uri("good"), "sandbox": profile("good")},
        {"id": "d", "path": place.uri("good"), "sandbox": null},
        {"id": "e", "path": place.uri("good"), "sandbox": profile("file")},
    ]);
    let answer = client.call("capabilityRoots/discoverV1", json!({"roots": roots})).expect("an answer");
    let errors: Vec<_> = (0..5).map(|index| answer["roots"][index]["error"].clone()).collect();
    assert_eq!(
        errors,
        [
            json!(format!(
                "failed to inspect capability root {}: No such file or directory (os error 2)",
                place.uri("missing")
            )),
            json!(format!("capability root {} is not a directory", place.uri("file"))),
            json!(
                "failed to inspect capability root file://server/x: 'file://server/x' is invalid on 'linux'"
            ),
            Value::Null,
            Value::Null,
        ]
    );
    for allowed in [3, 4] {
        assert_eq!(answer["roots"][allowed]["skills"][0]["instructions"]["contents"], "good");
    }
    let denied = &answer["roots"][5];
    assert!(denied["error"].as_str().is_some_and(|error| error.contains("sandbox")), "{denied}");
    assert_eq!(denied["skills"], json!([]), "nothing is found unconfined");

    let many: Vec<_> = (0..129).map(|number| json!({"id": number.to_string(), "path": "file:///"})).collect();
    let refused = client.refusal("capabilityRoots/discoverV1", json!({"roots": many}));
    assert_eq!(refused, (-32600, "capability root discovery accepts at most 128 roots".to_owned()));
}

/// Starts a server whose user has this home.
fn serve(home: &Place) -> (Server, Client) {
    let mut command = program(&["serve", "--listen", "stdio"]);
    command.env("HOME", home.path("")).env_remove("CODEX_HOME");
    let (server, client) = Server::launch_stdio(command);
    client.initialize();
    (server, client)
}

#[test]
fn installed_plugins_and_skills_are_described() {
    let home = Place::new();
    let front = "---\nname: deploy\ndescription: >\n  puts it\n  online\nmetadata:\n  short-description: online\n---\nDo it.\n";
    let yaml = "dependencies:\n  tools:\n    - type: mcp\n      value: cloud\n      url: https://cloud.example\n    - bad\n\
                policy:\n  allow_implicit_invocation: false\n  products: [codex]\n";
    home.write(".agents/skills/deploy/SKILL.md", front);
    home.write(".agents/skills/deploy/agents/openai.yaml", yaml);
    home.write(".codex/skills/colons/SKILL.md", "---\ndescription: one: two: three\n---\n");
    home.write(".codex/skills/none/SKILL.md", "nothing about itself");
    home.write(".codex/plugins/cache/market/tool/1.9.0/.codex-plugin/plugin.json", r#"{"name":"old"}"#);
    let manifest = r#"{"name":"tool","interface":{"displayName":"The Tool"}}"#;
    home.write(".codex/plugins/cache/market/tool/1.10.0/.codex-plugin/plugin.json", manifest);
    home.write(
        ".codex/plugins/cache/market/tool/1.10.0/skills/use/SKILL.md",
        "---\nname: use\ndescription: d\n---\n",
    );
    home.write(".codex/plugins/cache/market/broken/1.0.0/.codex-plugin/plugin.json", "{");
    let (_server, client) = serve(&home);
    let mut answer = client.call("capabilities/discoverV2", json!({"cwd": "file:///"})).expect("an answer");
    let warnings = answer["warnings"].take();
    let plugin = |name: &str| format!(".codex/plugins/cache/market/tool/1.10.0/{name}");
    assert_eq!(
        answer,
        json!({
            "plugins": [{
                "id": "tool@market",
                "displayName": "The Tool",
                "remotePluginId": null,
                "version": "1.10.0",
                "root": home.uri(".codex/plugins/cache/market/tool/1.10.0"),
                "files": {
                    "manifest": file(&home, &plugin(".codex-plugin/plugin.json"), manifest),
                    "mcpConfig": null,
                    "appsConfig": null,
                },
                "skills": [{
                    "name": "tool:use",
                    "description": "d",
                    "shortDescription": null,
                    "path": home.uri(&plugin("skills/use/SKILL.md")),
                    "dependencies": null,
                    "policy": null,
                }],
            }],
            "skills": [
                {
                    "name": "colons",
                    "description": "one: two: three",
                    "shortDescription": null,
                    "path": home.uri(".codex/skills/colons/SKILL.md"),
                    "discoveryRoot": {"id": "codex-home-skills", "path": home.uri(".codex/skills")},
                    "dependencies": null,
                    "policy": null,
                },
                {
                    "name": "deploy",
                    "description": "puts it online",
                    "shortDescription": "online",
                    "path": home.uri(".agents/skills/deploy/SKILL.md"),
                    "discoveryRoot": {"id": "user-agent-skills", "path": home.uri(".agents/skills")},
                    "dependencies": {"tools": [{
                        "type": "mcp",
                        "value": "cloud",
                        "description": null,
                        "transport": null,
                        "command": null,
                        "url": "https://cloud.example",
                        "oauthCallbackPort": null,
                    }]},
                    "policy": {"allowImplicitInvocation": false, "products": ["codex"]},
                },
            ],
            "warnings": null,
        })
    );
    let warnings = warnings.as_array().expect("a list");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (warning, part) in warnings.iter().zip(["plugin `broken@market` is not JSON", "none/SKILL.md"]) {
        assert!(warning.as_str().is_some_and(|warning| warning.contains(part)), "{warnings:?}");
    }
}

#[test]
fn a_host_without_plugins_and_skills_has_none() {
    let home = Place::new();
    let (_server, client) = serve(&home);
    let answer = client.call("capabilities/discoverV2", json!({"cwd": "file:///"})).expect("an answer");
    assert_eq!(answer, json!({"plugins": [], "skills": [], "warnings": []}));
}

#[test]
fn discovery_is_limited_to_what_the_credential_may_read() {
    let place = Place::new();
    place.write("in/s/SKILL.md", "inside");
    place.write("out/s/SKILL.md", "outside");
    place.write("in/.codex-plugin/plugin.json", "{}");
    place.write("out/mcp.json", "secret");
    place.link("../out", "in/away");
    place.link("../out/mcp.json", "in/.mcp.json");
    let inside = place.path("in").canonicalize().expect("it exists");
    let token = token_of("limited");
    let tokens = format!("{token} name=limited scope=files:read={}\n", inside.display());
    let (server, audit) = Guarded::audited(&tokens);
    let client = server.client(&token);
    let found = root(&client, &place, "in");
    assert_eq!(skills(&place, &found), ["in/s/SKILL.md"]);
    assert_eq!(found["plugin"]["mcpConfig"], Value::Null, "{found}");
    let recorded = json!({"event": "read", "method": "capabilityRoots/discoverV1", "outcome": "ok"});
    assert_eq!(audit.line(&recorded)["identity"], "token:limited");
    let (outside, missing) = (root(&client, &place, "out"), root(&client, &place, "missing"));
    for (name, denied) in [("out", outside), ("missing", missing)] {
        let error = denied["error"].as_str().expect("it is refused");
        assert!(error.contains("is outside the paths that this credential may read"), "{name}: {error}");
        assert_eq!(denied["skills"], json!([]));
    }
    let installed = client.call("capabilities/discoverV2", json!({"cwd": "file:///"})).expect("an answer");
    assert_eq!((&installed["plugins"], &installed["skills"]), (&json!([]), &json!([])));
}
