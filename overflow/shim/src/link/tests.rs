//! The link against an executor of the test's own, over TCP.
