package parsers

// deepseekR1 always thinks: text without any tag is reasoning. A tool-call marker inside an
// unclosed block stays reasoning.
var deepseekR1 = thinkTags{start: "<think>", end: "</think>", always: true}
