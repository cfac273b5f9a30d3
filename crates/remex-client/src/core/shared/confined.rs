//! File requests in a sandbox.

use remex_proto::{Call, sandbox::Sandbox};

/// Confines a file request that is not confined yet; other requests stay as they are.
pub(super) fn confine(call: &mut Call, sandbox: &Sandbox) {
    if let Some(own) = sandbox_of(call)
        && own.is_disabled()
    {
        *own = sandbox.clone();
    }
}

fn sandbox_of(call: &mut Call) -> Option<&mut Sandbox> {
    Some(match call {
        Call::FsReadFile(request) => &mut request.sandbox,
        Call::FsWriteFile(request) => &mut request.sandbox,
        Call::FsCreateDirectory(request) => &mut request.sandbox,
        Call::FsGetMetadata(request) => &mut request.sandbox,
        Call::FsCanonicalize(request) => &mut request.sandbox,
        Call::FsReadDirectory(request) => &mut request.sandbox,
        Call::FsWalk(request) => &mut request.sandbox,
        Call::FsRemove(request) => &mut request.sandbox,
        Call::FsCopy(request) => &mut request.sandbox,
        Call::FsOpen(request) => &mut request.sandbox,
        Call::FsRename(request) => &mut request.sandbox,
        Call::FsSetPermissions(request) => &mut request.sandbox,
        Call::FsSetTimes(request) => &mut request.sandbox,
        Call::FsSymlink(request) => &mut request.sandbox,
        Call::FsReadLink(request) => &mut request.sandbox,
        Call::FsHash(request) => &mut request.sandbox,
        Call::FsSearch(request) => &mut request.sandbox,
        Call::FsWatch(request) => &mut request.sandbox,
        // The others are about what was opened or is watched, or no file requests.
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Every path that a file request can have, and what else some need.
    const PARAMS: &str = r#"{"path":"/a","sourcePath":"/a","destinationPath":"/b","handleId":"h","watchId":1,"offset":0,
        "dataBase64":"","mode":"read","target":"/a","modifiedAtMs":1,"options":{"maxDepth":1,"maxDirectories":1,"maxEntries":1,
        "followDirectorySymlinks":false,"pruneHiddenDirectories":false},"len":1,"details":true,"recursive":true}"#;

    /// Those that have no sandbox, because they name no path that a model chooses.
    const OTHERS: [&str; 5] = ["fs/readBlock", "fs/writeBlock", "fs/close", "fs/watchMissing", "fs/unwatch"];

    #[test]
    fn every_file_request_with_a_path_is_confined() {
        let directory = remex_proto::HostPath::parse("/w").unwrap();
        let sandbox = crate::api::process::Sandbox::read_only().to_wire(&directory).unwrap();
        let names = remex_proto::call::METHODS.iter().map(|method| method.name);
        let methods: Vec<_> = names.filter(|name| name.starts_with("fs/")).collect();
        assert!(methods.len() > 15, "{methods:?}");
        for method in methods {
            if OTHERS.contains(&method) {
                continue;
            }
            let mut params: Value = serde_json::from_str(PARAMS).unwrap();
            if method == "fs/setPermissions" {
                params["mode"] = 0o600.into();
            }
            let parsed = Call::parse(method, Some(&params.to_string()));
            let mut call = parsed.unwrap_or_else(|error| panic!("{method}: {error:?}"));
            confine(&mut call, &sandbox);
            assert_eq!(sandbox_of(&mut call), Some(&mut sandbox.clone()), "{method}");
        }
    }
}
