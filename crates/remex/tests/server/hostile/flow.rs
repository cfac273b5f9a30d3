//! Connections under attack: huge messages, floods and peers that never acknowledge.
