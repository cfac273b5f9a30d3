//! Processes, their input and their logs under attack.
