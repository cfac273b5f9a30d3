//! Requests for a server of the oldest dialect, which knows plain paths only.

use remex_proto::HostPath;
use serde_json::Value;

/// The members that are paths, in every method of the oldest dialect.
const PATHS: [&str; 4] = ["cwd", "path", "sourcePath", "destinationPath"];

/// Replaces the URIs in an encoded request without its id by plain paths.
///
/// A path that is not UTF-8 stays a URI: the oldest dialect cannot name it.
pub(super) fn use_plain_paths(body: &mut Vec<u8>) {
    // The body continues an object that begins with the id.
    let text = [b"{", body.strip_prefix(b",").unwrap_or(body)].concat();
    let Ok(mut request) = serde_json::from_slice::<Value>(&text) else { return };
    let Some(params) = request.get_mut("params") else { return };
    for member in PATHS {
        if let Some(path) = params.get_mut(member)
            && let Some(plain) = path.as_str().and_then(plain)
        {
            *path = plain.into();
        }
    }
    let request = request.to_string();
    body.clear();
    body.push(b',');
    body.extend_from_slice(&request.as_bytes()[1..]);
}

fn plain(uri: &str) -> Option<String> {
    let path = HostPath::parse(uri).ok()?;
    String::from_utf8(path.as_bytes()?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_become_plain_paths_and_other_fields_are_unchanged() {
        let mut body = br#","method":"fs/copy","params":{"sourcePath":"file:///a%20b","destinationPath":"file:///%FF","recursive":true}}"#.to_vec();
        use_plain_paths(&mut body);
        let request: Value = serde_json::from_slice(&[b"{\"id\":1", &body[..]].concat()).unwrap();
        let expected = serde_json::json!({"id": 1, "method": "fs/copy",
            "params": {"sourcePath": "/a b", "destinationPath": "file:///%FF", "recursive": true}});
        assert_eq!(request, expected);
    }
}
