//! A minute of work through a faulty proxy, compared byte by byte.
