//! The names of definitions: each begins with its area, so that it means something in one flat namespace and differs
//! from the built-in names of other languages.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The definitions that are no params or result of one method, and their names in the schema.
///
/// All others are named after their method, see [`method_name`].
const SHARED: &[(&str, &str)] = &[
    ("Blob", "Base64Bytes"),
    ("Capabilities", "InitializeCapabilities"),
    ("Capability", "InitializeCapability"),
    ("CapabilityRoot", "CapabilityRootsRoot"),
    ("Change", "FsChange"),
    ("ChangeKind", "FsChangeKind"),
    ("Chunk", "ProcessChunk"),
    ("CollectedProcess", "ProcessCollectedEntry"),
    ("ConfigLayer", "EnvironmentConfigLayer"),
    ("ConfigLayers", "EnvironmentConfigLayers"),
    ("ContentHash", "FsContentHash"),
    ("DeniedHost", "ProcessDeniedHost"),
    ("DirectoryEntry", "FsDirectoryEntry"),
    ("DiscoveryRoot", "CapabilitiesDiscoveryRoot"),
    ("Empty", "RpcEmptyResult"),
    ("Encoded", "Base64Text"),
    ("EnvPolicy", "ProcessEnvPolicy"),
    ("EnvironmentConfinement", "EnvironmentConfinement"),
    ("EnvironmentFeatures", "EnvironmentFeatures"),
    ("EnvironmentInfo", "EnvironmentInfo"),
    ("EnvironmentKeeper", "EnvironmentKeeper"),
    ("EnvironmentState", "EnvironmentState"),
    ("EnvironmentStatus", "EnvironmentStatus"),
    ("Error", "RpcError"),
    ("ErrorData", "RpcErrorData"),
    ("ErrorKind", "RpcErrorKind"),
    ("ExitCause", "ProcessExitCause"),
    ("FoundCapabilityRoot", "CapabilityRootsFound"),
    ("FoundFile", "FsFoundFile"),
    ("FoundLine", "FsFoundLine"),
    ("GapCause", "ProcessGapCause"),
    ("GapRange", "ProcessGapRange"),
    ("HostPath", "HostPath"),
    ("HttpHeader", "HttpRequestHeader"),
    ("IfMatch", "FsIfMatch"),
    ("Inherit", "ProcessEnvInherit"),
    ("LimitMethod", "EnvironmentLimitMethod"),
    ("Limits", "InitializeLimits"),
    ("Metadata", "FsMetadata"),
    ("MetadataKind", "FsMetadataKind"),
    ("NetworkDecision", "NetworkDecision"),
    ("NetworkProtocol", "NetworkProtocol"),
    ("NetworkTarget", "NetworkTarget"),
    ("OpenMode", "FsOpenMode"),
    ("OutputOptions", "ProcessOutputOptions"),
    ("Overflow", "ProcessOverflow"),
    ("Plugin", "CapabilitiesPlugin"),
    ("PluginFiles", "CapabilitiesPluginFiles"),
    ("ProcessConfinement", "EnvironmentProcessConfinement"),
    ("ProcessEntry", "ProcessEntry"),
    ("ProcessLimits", "EnvironmentProcessLimits"),
    ("ProcessState", "ProcessState"),
    ("Produced", "ProcessProduced"),
    ("RedirectPolicy", "HttpRedirectPolicy"),
    ("RequestId", "RpcRequestId"),
    ("ResourceLimits", "ProcessResourceLimits"),
    ("ResponseHeader", "HttpResponseHeader"),
    ("Restart", "ProcessRestart"),
    ("RestartPolicy", "ProcessRestartPolicy"),
    ("Sandbox", "SandboxOrNull"),
    ("SandboxAccess", "SandboxAccess"),
    ("SandboxContext", "SandboxContext"),
    ("SandboxEntry", "SandboxEntry"),
    ("SandboxFileSystem", "SandboxFileSystem"),
    ("SandboxHosts", "SandboxHosts"),
    ("SandboxMissingPathBehavior", "SandboxMissingPathBehavior"),
    ("SandboxNetwork", "SandboxNetwork"),
    ("SandboxPermissions", "SandboxPermissions"),
    ("SandboxPlace", "SandboxEntryPath"),
    ("SandboxPolicyContext", "SandboxPolicyContext"),
    ("SandboxSpecial", "SandboxSpecialPath"),
    ("SandboxType", "ProcessSandboxType"),
    ("Scope", "ProcessScope"),
    ("SearchLimit", "FsSearchLimit"),
    ("SearchOptions", "FsSearchOptions"),
    ("SearchReport", "FsSearchReport"),
    ("SeekTo", "ProcessSeekPosition"),
    ("Server", "InitializeServer"),
    ("SessionEntry", "SessionEntry"),
    ("SessionScope", "SessionScope"),
    ("Shell", "EnvironmentShell"),
    ("ShellSnapshot", "ProcessShellSnapshot"),
    ("SignalName", "ProcessSignalName"),
    ("Skill", "CapabilitiesSkill"),
    ("SkillDependencies", "CapabilitiesSkillDependencies"),
    ("SkillFiles", "CapabilitiesSkillFiles"),
    ("SkillPolicy", "CapabilitiesSkillPolicy"),
    ("SkillTool", "CapabilitiesSkillTool"),
    ("Starts", "EnvironmentStarts"),
    ("Stream", "ProcessStream"),
    ("TerminateMode", "ProcessTerminateMode"),
    ("TerminateScope", "ProcessTerminateScope"),
    ("TextFile", "CapabilitiesTextFile"),
    ("TraceCarrier", "RpcTrace"),
    ("Until", "ProcessWaitCondition"),
    ("Usage", "ProcessUsage"),
    ("WaitReason", "ProcessWaitReason"),
    ("WalkEntry", "FsWalkEntry"),
    ("WalkError", "FsWalkError"),
    ("WalkKind", "FsWalkKind"),
    ("WalkOptions", "FsWalkOptions"),
    ("WriteStatus", "ProcessWriteStatus"),
];

/// Returns the name of a method in names of definitions: `ProcessStart` for `process/start`.
pub(super) fn method_name(method: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    method.split('/').map(word).collect()
}

/// What becomes of the names of generated definitions.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The new name of each definition.
    renamed: BTreeMap<String, String>,
    /// The method or notification whose params a definition describes.
    methods: BTreeMap<String, String>,
}

impl Names {
    pub(super) fn new() -> Self {
        let renamed = SHARED.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
        Self { renamed, methods: BTreeMap::new() }
    }

    /// Names the params of a method or notification after it.
    pub(super) fn add_params(&mut self, method: &str, schema: &Value) {
        let name = self.add(format!("{}Params", method_name(method)), schema);
        self.methods.insert(name, method.to_owned());
    }

    /// Names the result of a method after it, unless others use it too.
    pub(super) fn add_result(&mut self, method: &str, schema: &Value) {
        self.add(format!("{}Result", method_name(method)), schema);
    }

    fn add(&mut self, new: String, schema: &Value) -> String {
        let name = definition(schema).expect("every params and result is a definition").to_owned();
        self.renamed.entry(name.clone()).or_insert(new);
        name
    }

    /// Renames all definitions and references, and replaces links in descriptions.
    pub(super) fn apply(&self, definitions: Map<String, Value>) -> Map<String, Value> {
        let mut named = Map::new();
        for (name, mut schema) in definitions {
            self.rewrite(&mut schema, &name);
            let new = self.renamed.get(&name);
            let new = new.unwrap_or_else(|| panic!("the definition `{name}` has no name in `SHARED`"));
            assert!(named.insert(new.clone(), schema).is_none(), "two definitions are named `{new}`");
        }
        named
    }

    /// Rewrites references and descriptions; `within` is the definition that they are part of.
    pub(super) fn rewrite(&self, schema: &mut Value, within: &str) {
        match schema {
            Value::Object(members) => {
                for (key, value) in members {
                    match (key.as_str(), &mut *value) {
                        ("description", Value::String(text)) => *text = self.without_links(text, within),
                        ("$ref", Value::String(reference)) => {
                            let name = reference.rsplit('/').next().unwrap_or_default();
                            if let Some(new) = self.renamed.get(name) {
                                *reference = format!("#/$defs/{new}");
                            }
                        }
                        _ => self.rewrite(value, within),
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.rewrite(value, within)),
            _ => {}
        }
    }

    /// Replaces links to Rust items by what they are in the protocol, and joins lines.
    fn without_links(&self, text: &str, within: &str) -> String {
        let text = text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
        let mut plain = String::new();
        let mut rest = text.as_str();
        while let Some((before, link)) = rest.split_once("[`") {
            let (item, after) = link.split_once("`]").expect("a link to an item ends");
            plain.push_str(before);
            plain.push_str(&self.meaning(item, within));
            rest = after;
        }
        plain + rest
    }

    fn meaning(&self, item: &str, within: &str) -> String {
        // Rust items are named within their module, definitions within the schema.
        let areas = ["", "Process", "Session", "Environment"];
        let candidates = areas
            .iter()
            .filter(|area| within.starts_with(**area))
            .rev()
            .map(|area| format!("{area}{item}"))
            .chain([item.to_owned(), format!("{item}Capabilities")]);
        for name in candidates {
            if let Some(method) = self.methods.get(&name) {
                return format!("`{method}`");
            }
            if let Some(new) = self.renamed.get(&name) {
                return format!("`{new}`");
            }
        }
        panic!("the description of `{within}` has a link to `{item}`, which is no definition");
    }
}

/// Returns the definition that a schema refers to.
pub(super) fn definition(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.rsplit('/').next()
}
