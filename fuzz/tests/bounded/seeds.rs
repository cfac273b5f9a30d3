//! Where mutation starts: `fuzz/seeds`, and the vectors of the protocol.

use std::{fs, path::Path};

use serde_json::{Value, json};

/// Returns the seeds of a target, always in the same order.
pub(crate) fn of(target: &str) -> Vec<Vec<u8>> {
    let mut seeds = committed(target);
    match target {
        "message" => {
            seeds.extend(texts("envelope.jsonl"));
            seeds.extend(texts("output.jsonl"));
            seeds.extend(vectors("calls.jsonl").into_iter().map(|call| {
                json!({"id": 1, "method": call["method"], "params": call["params"]}).to_string().into()
            }));
        }
        "binary" => {
            seeds.extend(vectors("binary.jsonl").into_iter().map(|vector| {
                let hex = vector["hex"].as_str().unwrap().as_bytes();
                let byte = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
                hex.chunks(2).map(byte).collect()
            }));
        }
        "host_path" => seeds.extend(texts("paths.jsonl")),
        _ => {}
    }
    seeds
}

fn committed(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

fn texts(file: &str) -> impl Iterator<Item = Vec<u8>> {
    vectors(file).into_iter().map(|vector| vector["text"].as_str().unwrap().into())
}

fn vectors(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec/vectors").join(file);
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
