//! What a handle points at: a tokenizer, and how it encodes text within a sequence.

use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{
    Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer, PreTokenizerWrapper,
    Tokenizer,
};

/// A loaded `tokenizer.json`.
pub(crate) struct Engine {
    pub(crate) tokenizer: Tokenizer,
    /// The pre-tokenizer for text that follows other tokens, where that is another one.
    within: Option<PreTokenizerWrapper>,
}

impl Engine {
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        let within = tokenizer.get_pre_tokenizer().and_then(without_first);
        Self { tokenizer, within }
    }

    /// Writes the ids of `text` to `room` and returns how many there are. If that is more than
    /// `room` holds, the rest is not written.
    ///
    /// These are the steps of `Tokenizer::encode_fast` up to the ids. The crate would now copy
    /// them into an `Encoding` with six more arrays, and post-processing without special tokens
    /// changes none of them.
    pub(crate) fn ids(
        &self,
        text: &str,
        inner: bool,
        room: &mut [u32],
    ) -> tokenizers::Result<usize> {
        let added = self.tokenizer.get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        let within = self.within.as_ref().filter(|_| inner);
        if let Some(splitter) = within.or(self.tokenizer.get_pre_tokenizer()) {
            splitter.pre_tokenize(&mut pieces)?;
        }
        let model = self.tokenizer.get_model();
        pieces.tokenize(|piece| model.tokenize(piece.get()))?;
        let mut len = 0;
        for (_, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
            for token in tokens.iter().flatten() {
                if let Some(place) = room.get_mut(len) {
                    *place = token.id;
                }
                len += 1;
            }
        }
        Ok(len)
    }

    /// The number of ids, as `Tokenizer::get_vocab_size(true)` counts them, without the copy
    /// of the whole vocabulary that it makes.
    pub(crate) fn vocab_size(&self) -> usize {
        let model = self.tokenizer.get_model();
        let in_model = match model {
            ModelWrapper::Unigram(_) => model.get_vocab().len(), // its list may hold a piece twice
            other => other.get_vocab_size(),
        };
        let added = self.tokenizer.get_added_vocabulary().get_vocab();
        let beside = added.keys().filter(|t| model.token_to_id(t).is_none());
        in_model + beside.count()
    }
}

/// The pre-tokenizer with `prepend_scheme` "first" turned into "never", `None` if it has none.
fn without_first(splitter: &PreTokenizerWrapper) -> Option<PreTokenizerWrapper> {
    match splitter {
        PreTokenizerWrapper::Metaspace(space)
            if space.get_prepend_scheme() == PrependScheme::First =>
        {
            let mut space = space.clone();
            space.set_prepend_scheme(PrependScheme::Never);
            Some(PreTokenizerWrapper::Metaspace(space))
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            let mut changed = false;
            let steps = sequence.as_ref().iter().map(|step| {
                let other = without_first(step);
                changed |= other.is_some();
                other.unwrap_or_else(|| step.clone())
            });
            let steps = steps.collect();
            changed.then(|| PreTokenizerWrapper::Sequence(Sequence::new(steps)))
        }
        _ => None,
    }
}
