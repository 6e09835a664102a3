//! The computation of a prompt.

use std::io::{self, IsTerminal, Write};

use kiln_llm::Session;

use crate::Result;
use crate::program::interrupt::Interrupt;

/// Computes all tokens of a session but the last part of them, and shows the progress of a long prompt on standard error if that is a
/// terminal. Returns `false` where Ctrl-C requested a stop.
pub(crate) fn compute(session: &mut Session<'_>, interrupt: &Interrupt) -> Result<bool> {
    let shown = io::stderr().is_terminal();
    let mut is_line = false;
    loop {
        let left = session.prefill();
        let stops = interrupt.is_requested();
        match left {
            Ok(left) if left > 0 && !stops => {
                if shown {
                    let all = session.tokens().len();
                    // Writing fails when the reader has closed the pipe, here and below.
                    let _ = write!(io::stderr(), "\rprompt: {} of {all} tokens", all - left);
                    is_line = true;
                }
            }
            left => {
                if is_line {
                    let _ = write!(io::stderr(), "\r\x1b[K");
                }
                return Ok(left.map(|_| !stops)?);
            }
        }
    }
}
