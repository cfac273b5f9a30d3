//! Binary messages.

use bytes::Bytes;
use remex_proto::{
    Call, Message, MessageLimits, ServerNote, attachment,
    binary::{self, Binary},
};

/// A binary message has one spelling, and whatever it contains is decoded or refused.
pub fn binary(data: &[u8]) {
    let message = Bytes::copy_from_slice(data);
    match Binary::parse(&message) {
        Ok(Binary::Output(output)) => {
            let again = binary::Output {
                process_id: &output.process_id,
                session_id: output.session_id.as_deref(),
                incarnation: output.incarnation,
                seq: output.seq,
                stream: output.stream,
                bytes: &output.chunk,
            };
            if again.fits() {
                let mut written = Vec::new();
                again.write(&mut written);
                assert_eq!(written, data);
            }
        }
        Ok(Binary::Message { json, attached }) => {
            assert_eq!(json.len(), binary::json_len(data));
            assert_eq!(binary::MESSAGE_HEAD_LEN + json.len() + attached.len(), data.len());
            attachment::with(attached, || check_content(&json));
            assert!(attachment::collect(|| ()).1.pieces.is_empty(), "something is left behind");
        }
        Err(malformed) => assert!(!malformed.to_string().is_empty()),
    }
}

/// What is decoded with attached bytes is written beside the JSON as within it.
fn check_content(json: &[u8]) {
    match Message::parse(json, MessageLimits::WIRE) {
        Ok(Message::Request { method, params, .. }) => {
            let Ok(call) = Call::parse(&method, params) else { return };
            let written = |call: &Call| {
                let mut body = b"{\"id\":0".to_vec();
                call.write_body(&mut body);
                body
            };
            let inline = written(&call);
            let (beside, attached) = attachment::collect(|| written(&call));
            let bytes = Bytes::from(attached.pieces.concat());
            assert_eq!(bytes.len(), attached.len);
            let Ok(Message::Request { method, params, .. }) =
                Message::parse(&beside, MessageLimits::FROM_SERVER)
            else {
                panic!("a call is written as no request")
            };
            let again = attachment::with(bytes, || Call::parse(&method, params)).unwrap();
            assert_eq!(written(&again), inline);
        }
        Ok(Message::Notification { method, params }) => {
            let _ = ServerNote::parse(&method, params);
        }
        Ok(Message::Response { .. }) | Err(_) => {}
    }
}
