//! A trouble that lasts is told once, not at every attempt.

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Option<String>);

impl Trouble {
    /// Whether this is news.
    pub(crate) fn is_news(&mut self, error: &dyn std::error::Error) -> bool {
        let text = error.to_string();
        let news = self.0.as_ref() != Some(&text);
        self.0 = Some(text);
        news
    }

    /// It went well again.
    pub(crate) fn is_over(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_news_once_until_it_is_over() {
        let mut trouble = Trouble::default();
        let refused = std::io::Error::other("refused");
        let forbidden = std::io::Error::other("forbidden");
        assert!(trouble.is_news(&refused));
        assert!(!trouble.is_news(&refused));
        assert!(trouble.is_news(&forbidden));
        trouble.is_over();
        assert!(trouble.is_news(&forbidden));
    }
}
