//! Decoders of streams: the same bytes must give the same result however they are cut on their way.
//!
//! An input begins with the limit and the cuts, so that a fuzzer can move them.

use std::{
    io::Cursor,
    pin::pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use remex_proto::state::line_framer::{Line, LineFramer};
use remex_rpc::{
    FrameReader, Framing, Incoming, ReadHalf, Role, SendBuffer,
    websocket::{Decoder, Event},
};
use tokio::io::{AsyncReadExt as _, empty};

/// Lines are what the rules say, and do not depend on the cuts.
pub fn lines(data: &[u8]) {
    let Some((limit, pieces)) = header(data) else { return };
    let mut framer = LineFramer::new(limit);
    let mut found = Vec::new();
    for piece in pieces.clone() {
        framer.push(piece);
        found.extend(framer.by_ref());
    }
    found.extend(std::iter::from_fn(|| framer.finish()));
    let whole: Vec<u8> = pieces.clone().flatten().copied().collect();
    assert_eq!(found, lines_of(&whole, limit));
    assert_eq!(cut_into_lines(&whole, limit), found);
    assert_eq!(mixed(limit, pieces), mixed(limit, [&whole[..]]), "with binary messages");
}

/// The lines, and the binary messages between them.
fn mixed<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut framer = LineFramer::new(limit);
    framer.accept_binary();
    let mut found = Vec::new();
    for piece in pieces {
        framer.push(piece);
        found.extend(framer.by_ref());
    }
    found.extend(std::iter::from_fn(|| framer.finish()));
    let is_short = |line: &Line| !matches!(line, Line::Message(message) if message.len() > limit);
    assert!(found.iter().all(is_short));
    found
}

/// What the rules say about the whole input at once.
fn lines_of(input: &[u8], limit: usize) -> Vec<Line> {
    let without_terminator = |line| <[u8]>::strip_suffix(line, b"\r").unwrap_or(line);
    let is_blank = |line: &[u8]| line.len() <= limit && line.iter().all(u8::is_ascii_whitespace);
    let lines = input.split(|byte| *byte == b'\n').map(without_terminator).filter(|line| !is_blank(line));
    lines
        .map(|line| match line.len() <= limit {
            true => Line::Message(Bytes::copy_from_slice(line)),
            false => Line::TooLong,
        })
        .collect()
}

fn cut_into_lines(input: &[u8], limit: usize) -> Vec<Line> {
    let mut framer = LineFramer::new(limit);
    framer.push(input);
    std::iter::from_fn(|| framer.finish()).collect()
}

/// Frames of either role do not depend on the cuts, keep the limit, and survive being sent on.
pub fn websocket(data: &[u8]) {
    let Some((limit, pieces)) = header(data) else { return };
    for role in [Role::Server, Role::Client] {
        let events = decode(role, limit, pieces.clone());
        let whole: Vec<u8> = pieces.clone().flatten().copied().collect();
        assert_eq!(events, decode(role, limit, [&whole[..]]));
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Message(message) => assert!(message.len() <= limit),
                Event::Ping(payload) | Event::Pong(payload) => assert!(payload.len() <= 125),
                Event::Close { .. } | Event::TooLong | Event::NoMemory | Event::Violation(_) => {
                    assert_eq!(at + 1, events.len(), "something follows the end");
                }
            }
        }
        check_sending(role, limit, &events);
    }
}

fn decode<'a>(role: Role, limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
    let mut decoder = Decoder::new(role, limit);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        events.extend(decoder.by_ref());
    }
    events
}

/// Checks that the events arrive again when the other end sends them.
fn check_sending(role: Role, limit: usize, events: &[Event]) {
    let sender = match role {
        Role::Server => Role::Client,
        Role::Client => Role::Server,
    };
    let mut buffer = SendBuffer::new(Framing::WebSocket(sender));
    let mut sent = Vec::new();
    for event in events {
        match event {
            Event::Message(message) => {
                buffer.message(message.len(), |out| out.extend_from_slice(message));
            }
            Event::Ping(payload) => buffer.ping(payload),
            Event::Pong(payload) => buffer.pong(payload),
            Event::Close { code: Some(code), reason } => buffer.close(*code, reason),
            Event::Close { code: None, .. } | Event::TooLong | Event::NoMemory | Event::Violation(_) => break,
        }
        sent.push(event.clone());
    }
    assert_eq!(decode(role, limit, [buffer.pending()]), sent);
}

/// A reader finds in large messages, which it reads in place, what the decoder finds in the whole.
///
/// The input describes the stream instead of being it: large messages would drown a fuzzer.
pub fn frame_reader(data: &[u8]) {
    let Some((&[framing, limit, cut, other_cut], segments)) = data.split_first_chunk() else { return };
    let framing = match framing % 3 {
        0 => Framing::Lines,
        1 => Framing::WebSocket(Role::Server),
        _ => Framing::WebSocket(Role::Client),
    };
    let limit = usize::from(limit) << 10;
    let mut stream = Vec::new();
    for segment in segments.as_chunks().0.iter().take(4) {
        append_segment(&mut stream, framing, *segment);
    }
    let mut cuts = [cut, other_cut].map(|cut| stream.len() * usize::from(cut) / 255);
    cuts.sort_unstable();
    let [cut, other_cut] = cuts;
    let pieces = [&stream[..cut], &stream[cut..other_cut], &stream[other_cut..]];

    let expected: Vec<Event> = match framing {
        Framing::Lines => cut_into_lines(&stream, limit).into_iter().map(event_of).collect(),
        Framing::WebSocket(role) => decode(role, limit, [&stream[..]]),
    };
    let found = read(framing, limit, &pieces);
    assert_eq!(found.len(), expected.len(), "another number of events");
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(is_same(found, expected), "event {at} differs");
    }
}

/// Appends a line or frame: its kind, and its length in two bytes.
fn append_segment(stream: &mut Vec<u8>, framing: Framing, [kind, high, low]: [u8; 3]) {
    let payload = |len: u16| (0..len).map(move |at| b'A' + (kind & 1) + (at % 57) as u8);
    let len = u16::from_be_bytes([high, low]);
    let Framing::WebSocket(role) = framing else {
        stream.extend(payload(len));
        stream.extend_from_slice([&b"\n"[..], b"\r\n", b"\r", b""][usize::from(kind % 4)]);
        return;
    };
    let is_control = kind & 0x08 != 0;
    let len = if is_control { len % 126 } else { len };
    let mask_bit = if role == Role::Server { 0x80 } else { 0 };
    stream.push(kind & 0x8F);
    if len < 126 {
        stream.push(mask_bit | len as u8);
    } else {
        stream.push(mask_bit | 126);
        stream.extend(len.to_be_bytes());
    }
    // The stream is what matters and not what it says, so the payload counts as masked already.
    if role == Role::Server {
        stream.extend([kind, high, low, 0x55]);
    }
    stream.extend(payload(len));
}

fn read(framing: Framing, limit: usize, pieces: &[&[u8]]) -> Vec<Incoming> {
    let chain = |io: ReadHalf, piece: &&[u8]| Box::new(io.chain(Cursor::new(piece.to_vec()))) as ReadHalf;
    let io = pieces.iter().fold(Box::new(empty()) as ReadHalf, chain);
    let mut reader = FrameReader::new(io, framing, limit);
    let next = || match pin!(reader.next()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Incoming::End) => None,
        Poll::Ready(incoming) => Some(incoming),
        Poll::Pending => panic!("waits although everything is there"),
    };
    std::iter::from_fn(next).collect()
}

fn event_of(line: Line) -> Event {
    match line {
        Line::Message(message) => Event::Message(message),
        Line::TooLong => Event::TooLong,
    }
}

fn is_same(incoming: &Incoming, event: &Event) -> bool {
    match (incoming, event) {
        (Incoming::Message(found), Event::Message(expected))
        | (Incoming::Ping(found), Event::Ping(expected))
        | (Incoming::Pong(found), Event::Pong(expected)) => found == expected,
        (Incoming::TooLong { .. }, Event::TooLong) => true,
        (Incoming::Close { code, reason }, Event::Close { code: expected, reason: words }) => {
            (code, reason) == (expected, words)
        }
        (Incoming::Violation { code, reason }, Event::Violation(violation)) => {
            (*code, &**reason) == (violation.code(), &*violation.to_string())
        }
        _ => false,
    }
}

/// Takes the limit and the lengths of the pieces from the front of an input; the lengths repeat to its end.
fn header(data: &[u8]) -> Option<(usize, impl Iterator<Item = &[u8]> + Clone)> {
    let (&[limit, count], rest) = data.split_first_chunk()?;
    let (lens, mut rest) = rest.split_at_checked(usize::from(count % 8))?;
    let mut lens = lens.iter().map(|len| 1 + usize::from(len % 32)).cycle();
    let pieces = std::iter::from_fn(move || {
        let piece;
        (piece, rest) = rest.split_at(lens.next().unwrap_or(rest.len()).min(rest.len()));
        (!piece.is_empty()).then_some(piece)
    });
    Some((usize::from(limit), pieces))
}
