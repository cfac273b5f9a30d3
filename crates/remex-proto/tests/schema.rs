//! The committed schema and the types say the same.

use std::{fs, path::Path};

use serde_json::Value;

const REGENERATE: &str = "UPDATE_SCHEMA=1 cargo test -p remex-proto --test schema";

#[test]
fn the_committed_schema_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/protocol.schema.json");
    let current = remex_proto::schema::schema();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, format!("{current:#}\n")).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let is_current = serde_json::from_str::<Value>(&committed).is_ok_and(|committed| committed == current);
    assert!(is_current, "spec/protocol.schema.json is stale; run `{REGENERATE}` and commit it");
}
