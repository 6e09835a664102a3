//! Uploads of host data to the device, in order with all submissions.

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod ring;

#[cfg(target_arch = "wasm32")]
pub(crate) use browser::Uploads;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use ring::Uploads;

/// Uploads through wgpu's queue, which creates a buffer for each upload. Pads the last word with zeros.
fn by_queue(queue: &wgpu::Queue, (target, offset): (&wgpu::Buffer, u64), bytes: &[u8]) {
    let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
    queue.write_buffer(target, offset, words);
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        queue.write_buffer(target, offset + words.len() as u64, &word);
    }
}
