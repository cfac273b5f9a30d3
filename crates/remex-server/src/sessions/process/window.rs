//! Limits how far streaming may run ahead of what the controller's consumers have consumed.
//!
//! Only for clients with the capability `consumed`. Start at [`StreamWindow`].

use std::collections::VecDeque;

use remex_engine::ServerLog;
use remex_proto::{
    flow::WINDOW_EVENTS,
    state::output_log::{Cursor, Seq},
};

/// What a connection was sent of a process and has not consumed.
#[derive(Debug)]
pub(super) struct StreamWindow {
    window_bytes: u64,
    consumed: Cursor,
    /// Where streaming began. The client reads earlier output itself; that counts as long as it can be read.
    begins: Cursor,
    /// Events streamed since, oldest first, with their bytes; without gaps.
    streamed: VecDeque<(Seq, u64)>,
    streamed_bytes: u64,
}

impl StreamWindow {
    /// Starts streaming at `begins` for a client that has consumed everything up to `consumed`.
    pub(super) fn new(window_bytes: u64, consumed: Cursor, begins: Cursor) -> Self {
        StreamWindow { window_bytes, consumed, begins, streamed: VecDeque::new(), streamed_bytes: 0 }
    }

    /// Records a streamed event with its output; the client may already have read and consumed it.
    pub(super) fn stream(&mut self, seq: Seq, bytes: usize) {
        if seq > self.consumed.seq {
            self.streamed.push_back((seq, bytes as u64));
            self.streamed_bytes += bytes as u64;
        }
    }

    /// Records how much the client has consumed.
    pub(super) fn consume(&mut self, up_to: Cursor) {
        self.consumed = up_to;
        let consumed = self.streamed.partition_point(|(seq, _)| *seq <= up_to.seq);
        self.streamed_bytes -= self.streamed.drain(..consumed).map(|(_, bytes)| bytes).sum::<u64>();
    }

    /// Returns whether a client that has resumed has not consumed everything before the stream.
    pub(super) fn is_catching_up(&self) -> bool {
        self.consumed.seq < self.begins.seq
    }

    /// Returns whether the event after `cursor` may be streamed; a gap is sent with the event that follows it.
    ///
    /// One more chunk fits as long as a client that reports every quarter of the window has no reason to report, however
    /// long the chunk is.
    pub(super) fn has_room(&self, log: &dyn ServerLog, cursor: &Cursor) -> bool {
        let evicted = log.first_seq() - 1;
        let next = Cursor { seq: cursor.seq.max(evicted), ..*cursor };
        let Some(len) = log.known_len(&next) else { return true };
        // Without a backlog, the exact positions do not matter, which a log on disk may not know.
        let read = match self.is_catching_up() {
            true => log.behind(&self.consumed).saturating_sub(log.behind(&self.begins)),
            false => 0,
        };
        let bytes = read + self.streamed_bytes;
        let to_read = self.begins.seq.saturating_sub(self.consumed.seq.max(evicted));
        let events = to_read + self.streamed.len() as u64;
        let is_unreported = bytes == 0 || bytes < self.window_bytes / 4;
        events < WINDOW_EVENTS && (is_unreported || bytes + len as u64 <= self.window_bytes)
    }
}

#[cfg(test)]
mod tests {
    use remex_proto::state::output_log::{Hold, Limits, Next, OutputLog, Stream};

    use super::*;

    const CHUNK: usize = 64;
    const WINDOW: u64 = 4 * CHUNK as u64;

    fn log() -> OutputLog {
        OutputLog::new(Limits { head_bytes: 0, ..Limits::default() })
    }

    fn print(log: &mut OutputLog, chunks: usize, len: usize) {
        for _ in 0..chunks {
            log.newest();
            let fill = &mut |room: &mut [u8]| Ok::<_, std::convert::Infallible>(room.len());
            assert_eq!(log.append(Stream::Stdout, 0, len, fill), Ok(len));
        }
    }

    /// Streams as much as fits and returns the last event.
    fn stream(window: &mut StreamWindow, log: &mut dyn ServerLog, cursor: &mut Cursor) -> Seq {
        while log.has_next(cursor) && window.has_room(log, cursor) {
            match log.next(cursor) {
                Ok(Some(Next::Output { seq, bytes, .. })) => window.stream(seq, bytes.len()),
                Ok(Some(Next::Exited(seq) | Next::Closed(seq))) => window.stream(seq, 0),
                Ok(Some(Next::Gap(_)) | None) | Err(_) => {}
            }
        }
        cursor.seq
    }

    #[test]
    fn a_window_of_output_is_streamed_ahead_of_the_consumer() {
        let (mut log, mut cursor) = (log(), Cursor::START);
        print(&mut log, 10, CHUNK);
        let mut window = StreamWindow::new(WINDOW, Cursor::START, Cursor::START);
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 4);
        window.consume(log.cursor_after(3));
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 7);
    }

    #[test]
    fn many_small_events_fill_the_window_too_and_one_large_one_always_fits() {
        let (mut log, mut cursor) = (log(), Cursor::START);
        print(&mut log, 5000, 1);
        let mut window = StreamWindow::new(1 << 20, Cursor::START, Cursor::START);
        assert_eq!(stream(&mut window, &mut log, &mut cursor), WINDOW_EVENTS);

        let (mut log, mut cursor) = (self::log(), Cursor::START);
        print(&mut log, 2, CHUNK);
        let mut window = StreamWindow::new(1, Cursor::START, Cursor::START);
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 1);
        window.consume(log.cursor_after(1));
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 2);
    }

    #[test]
    fn a_gap_needs_no_room_and_waits_for_the_event_behind_it() {
        let (mut log, mut cursor) = (log(), Cursor::START);
        print(&mut log, 4, CHUNK);
        let mut window = StreamWindow::new(WINDOW, Cursor::START, Cursor::START);
        stream(&mut window, &mut log, &mut cursor);
        print(&mut log, 40, CHUNK);
        log.evict(Hold::Nothing, 4 * CHUNK);
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 4, "the gap is not reported yet");
        window.consume(log.cursor_after(4));
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 44);
    }

    #[test]
    fn the_backlog_of_a_resumed_client_counts_until_it_is_consumed() {
        let mut log = log();
        print(&mut log, 5, CHUNK);
        let (consumed, mut cursor) = (log.cursor_after(1), log.newest());
        let mut window = StreamWindow::new(WINDOW, consumed, cursor);
        print(&mut log, 5, CHUNK);
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 5);
        window.consume(log.cursor_after(3));
        assert_eq!(stream(&mut window, &mut log, &mut cursor), 7);
    }
}
