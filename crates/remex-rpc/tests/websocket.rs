//! The WebSocket decoder against the send buffer, against every split and against garbage.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use remex_rpc::{
    Framing, Role, SendBuffer,
    websocket::{Decoder, Event, Violation},
};

const LIMIT: usize = 1 << 20;

/// Decodes `bytes` in pieces that end at `cuts`.
fn decode(role: Role, limit: usize, bytes: &[u8], cuts: &[usize]) -> Vec<Event> {
    let mut decoder = Decoder::new(role, limit);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.push(bytes.len());
    cuts.sort_unstable();
    let mut start = 0;
    let mut events = Vec::new();
    for cut in cuts {
        decoder.push(&bytes[start..cut]);
        start = cut;
        events.extend(decoder.by_ref());
    }
    events
}

fn decode_whole(role: Role, bytes: &[u8]) -> Vec<Event> {
    decode(role, LIMIT, bytes, &[])
}

/// A frame as a server receives it, its length in the shortest form.
fn masked_frame(first_byte: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first_byte];
    match payload.len() {
        len @ 0..=125 => frame.push(0x80 | len as u8),
        len @ 126..=0xFFFF => {
            frame.push(0x80 | 126);
            frame.extend((len as u16).to_be_bytes());
        }
        len => {
            frame.push(0x80 | 127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    let key = [0x12, 0x00, 0xFE, 0x7B];
    frame.extend(key);
    frame.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]));
    frame
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => vec(any::<u8>(), 0..200),
        1 => (65_530usize..65_545).prop_map(|len| vec![b'x'; len]),
    ]
}

/// Mostly valid frames, so that the interesting states are reached; now and then an arbitrary first byte.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let first_byte = prop_oneof![
        20 => prop::sample::select(vec![0x81u8, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8A, 0x88]),
        1 => any::<u8>(),
    ];
    vec((first_byte, payload()).prop_map(|(first, payload)| masked_frame(first, &payload)), 0..12)
        .prop_map(|frames| frames.concat())
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Server), Just(Role::Client)]
}

fn other(role: Role) -> Role {
    match role {
        Role::Server => Role::Client,
        Role::Client => Role::Server,
    }
}

proptest! {
    #[test]
    fn any_split_of_the_same_bytes_gives_the_same_events(bytes in frames(), cuts in vec(any::<usize>(), 0..40)) {
        prop_assert_eq!(decode(Role::Server, LIMIT, &bytes, &cuts), decode_whole(Role::Server, &bytes));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_split_alike(
        role in role(), limit in 0usize..100, bytes: Vec<u8>, cuts in vec(any::<usize>(), 0..10),
    ) {
        prop_assert_eq!(decode(role, limit, &bytes, &cuts), decode(role, limit, &bytes, &[]));
    }

    #[test]
    fn frames_of_a_send_buffer_round_trip(
        role in role(),
        messages in vec((payload(), prop::sample::select(vec![0usize, 100, 126, 70_000])), 0..6),
        ping in vec(any::<u8>(), 0..=125),
    ) {
        let mut buffer = SendBuffer::new(Framing::WebSocket(role));
        let mut expected = Vec::new();
        for (payload, len_hint) in messages {
            buffer.message(len_hint, |out| out.extend_from_slice(&payload));
            buffer.ping(&ping);
            buffer.pong(&ping);
            expected.push(Event::Message(payload.into()));
            expected.push(Event::Ping(Bytes::copy_from_slice(&ping)));
            expected.push(Event::Pong(Bytes::copy_from_slice(&ping)));
        }
        buffer.close(1001, "going away");
        expected.push(Event::Close { code: Some(1001), reason: "going away".into() });
        prop_assert_eq!(decode_whole(other(role), buffer.pending()), expected);
    }

    #[test]
    fn bytes_sent_in_pieces_between_messages_are_the_same_bytes(steps in vec((payload(), 0usize..300), 0..20)) {
        let mut buffer = SendBuffer::new(Framing::WebSocket(Role::Server));
        let mut sent = Vec::new();
        let mut messages = Vec::new();
        for (payload, sent_len) in steps {
            buffer.message(payload.len(), |out| out.extend_from_slice(&payload));
            messages.push(Event::Message(payload.into()));
            let sent_len = sent_len.min(buffer.len());
            sent.extend_from_slice(&buffer.pending()[..sent_len]);
            buffer.advance(sent_len);
        }
        sent.extend_from_slice(buffer.pending());
        buffer.advance(buffer.len());
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(decode_whole(Role::Client, &sent), messages);
    }
}

#[test]
fn fragments_are_joined_and_pings_in_between_come_first() {
    let bytes = [
        masked_frame(0x01, b"one "),
        masked_frame(0x89, b"?"),
        masked_frame(0x00, b""),
        masked_frame(0x80, b"message"),
        masked_frame(0x82, b"another"),
    ];
    assert_eq!(
        decode_whole(Role::Server, &bytes.concat()),
        [Event::Ping("?".into()), Event::Message("one message".into()), Event::Message("another".into())]
    );
}

#[test]
fn every_violation_is_distinguished() {
    let cases: &[(Role, &[u8], Violation)] = &[
        (Role::Server, b"\xC1\x80", Violation::ReservedBits),
        (Role::Server, b"\x83\x80", Violation::ReservedOpcode { opcode: 3 }),
        (Role::Server, b"\x8B\x80", Violation::ReservedOpcode { opcode: 11 }),
        (Role::Server, b"\x81\x01", Violation::Unmasked),
        (Role::Client, b"\x81\x81", Violation::Masked),
        (Role::Client, b"\x81\x7E\x00\x7D", Violation::LengthNotMinimal),
        (Role::Client, b"\x81\x7F\x00\x00\x00\x00\x00\x00\xFF\xFF", Violation::LengthNotMinimal),
        (Role::Client, b"\x81\x7F\x80\x00\x00\x00\x00\x00\x00\x00", Violation::LengthNotMinimal),
        (Role::Client, b"\x89\x7E", Violation::ControlTooLong),
        (Role::Client, b"\x09\x00", Violation::ControlFragmented),
        (Role::Client, b"\x80\x00", Violation::NothingToContinue),
        (Role::Client, b"\x01\x00\x01\x00", Violation::MessageInterrupted),
        (Role::Client, b"\x88\x01\x03", Violation::CloseCode),
        (Role::Client, b"\x88\x02\x03\xED", Violation::CloseCode),
        (Role::Client, b"\x88\x03\x03\xE8\xFF", Violation::CloseReason),
    ];
    for &(role, bytes, violation) in cases {
        let mut bytes = bytes.to_vec();
        bytes.extend_from_slice(b"\x81\x00");
        assert_eq!(decode_whole(role, &bytes), [Event::Violation(violation)], "{violation}");
    }
    assert_eq!((Violation::Unmasked.code(), Violation::CloseReason.code()), (1002, 1007));
}

#[test]
fn a_message_may_be_as_long_as_the_limit_and_not_a_byte_longer() {
    let exact = [masked_frame(0x01, b"12345"), masked_frame(0x80, b"67890")].concat();
    assert_eq!(decode(Role::Server, 10, &exact, &[]), [Event::Message("1234567890".into())]);
    assert_eq!(decode(Role::Server, 9, &exact, &[]), [Event::TooLong]);
    // The declared length is enough; the payload need not come.
    assert_eq!(decode(Role::Client, 9, b"\x81\x0A", &[]), [Event::TooLong]);
    assert_eq!(decode(Role::Client, 9, b"\x81\x7F\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF", &[]), [Event::TooLong]);
}

#[test]
fn input_after_a_close_is_ignored() {
    assert_eq!(
        decode_whole(Role::Client, b"\x88\x00\x81\x01x"),
        [Event::Close { code: None, reason: String::new() }]
    );
}

#[test]
fn a_long_close_reason_is_truncated_between_characters() {
    let mut buffer = SendBuffer::new(Framing::WebSocket(Role::Server));
    buffer.close(1008, &"é".repeat(100));
    let expected = Event::Close { code: Some(1008), reason: "é".repeat(61) };
    assert_eq!(decode_whole(Role::Client, buffer.pending()), [expected]);
}

#[test]
fn lines_have_no_control_frames() {
    let mut buffer = SendBuffer::new(Framing::Lines);
    buffer.ping(b"?");
    buffer.pong(b"!");
    buffer.close(1000, "bye");
    assert!(buffer.is_empty());
}
