//! How fast the `tokenizers` crate is when Rust calls it: the yardstick of the Go benchmark
//! that starts this program. It loads a tokenizer.json, then answers each request on standard
//! input, a line "count length" followed by a text of that length, with a line: the
//! nanoseconds of one `encode_fast` of that text, the mean of count calls.

use std::io::{BufRead, Read, Write};
use std::time::Instant;

use tokenizers::Tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let file = std::env::args()
        .nth(1)
        .ok_or("usage: direct tokenizer.json")?;
    let mut tokenizer = Tokenizer::from_file(file)?;
    tokenizer.with_truncation(None)?;
    tokenizer.with_padding(None);
    tokenizer.set_encode_special_tokens(true);
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let (count, length) = line.trim().split_once(' ').ok_or("want: count length")?;
        let count: u32 = count.parse()?;
        let mut text = vec![0; length.parse()?];
        input.read_exact(&mut text)?;
        let text = String::from_utf8(text)?;
        let start = Instant::now();
        for _ in 0..count {
            std::hint::black_box(tokenizer.encode_fast(text.as_str(), false)?.get_ids());
        }
        let each = start.elapsed().as_nanos() / u128::from(count.max(1));
        writeln!(output, "{each}")?;
        output.flush()?;
        line.clear();
    }
    Ok(())
}
