//! The metadata of a skill, in the front matter of `SKILL.md` and in `agents/openai.yaml`.

use remex_proto::discovery as wire;
use serde_json::{Map, Value};

use super::yaml;

/// The longest name, in characters.
const MAX_NAME: usize = 64;

/// Returns what a skill says about itself; `None` if it has no usable front matter.
pub(super) fn describe(files: &wire::SkillFiles) -> Option<wire::Skill> {
    let front = front_matter(&files.instructions.contents)?;
    let name = text(&front["name"]).or_else(|| directory_name(files))?;
    let description = text(&front["description"])?;
    if name.chars().count() > MAX_NAME {
        return None;
    }
    let metadata = files.metadata.as_ref().and_then(|file| yaml::parse(&file.contents)).unwrap_or_default();
    Some(wire::Skill {
        name,
        description,
        short_description: text(&front["metadata"]["short-description"]),
        path: files.instructions.path.clone(),
        discovery_root: None,
        dependencies: dependencies(&metadata["dependencies"]),
        policy: policy(&metadata["policy"]),
    })
}

/// Returns the front matter: the lines between the first two that are `---`.
fn front_matter(text: &str) -> Option<Value> {
    let mut lines = text.lines();
    if lines.next()?.trim_end() != "---" {
        return None;
    }
    let mut front = String::new();
    loop {
        match lines.next()? {
            line if line.trim_end() == "---" => break,
            line => {
                front.push_str(line);
                front.push('\n');
            }
        }
    }
    yaml::parse(&front).or_else(|| plain_lines(&front)).filter(Value::is_object)
}

/// Returns the lines `key: value` of what is not YAML: people write colons into descriptions.
fn plain_lines(front: &str) -> Option<Value> {
    let lines = front.lines().filter(|line| !line.starts_with([' ', '\t', '#', '-']));
    let members: Map<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(key, value)| (key.to_owned(), Value::String(value.to_owned())))
        .collect();
    (!members.is_empty()).then_some(Value::Object(members))
}

/// Returns a text on one line, unless it is empty.
fn text(value: &Value) -> Option<String> {
    let words: Vec<_> = value.as_str()?.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn directory_name(files: &wire::SkillFiles) -> Option<String> {
    let directory = files.instructions.path.native().ok()?.parent()?;
    Some(directory.file_name()?.to_string_lossy().into_owned())
}

fn dependencies(value: &Value) -> Option<wire::SkillDependencies> {
    let tools: Vec<_> = value["tools"].as_array()?.iter().filter_map(tool).collect();
    (!tools.is_empty()).then_some(wire::SkillDependencies { tools })
}

fn tool(value: &Value) -> Option<wire::SkillTool> {
    Some(wire::SkillTool {
        r#type: text(&value["type"])?,
        value: text(&value["value"])?,
        description: text(&value["description"]),
        transport: text(&value["transport"]),
        command: text(&value["command"]),
        url: text(&value["url"]),
        oauth_callback_port: text(&value["oauth_callback_port"]).and_then(|port| port.parse().ok()),
    })
}

fn policy(value: &Value) -> Option<wire::SkillPolicy> {
    let policy = value.as_object()?;
    let allow = policy.get("allow_implicit_invocation").and_then(Value::as_str);
    let products = policy.get("products").and_then(Value::as_array);
    Some(wire::SkillPolicy {
        allow_implicit_invocation: allow.and_then(|allow| allow.parse().ok()),
        products: products.into_iter().flatten().filter_map(text).collect(),
    })
}
