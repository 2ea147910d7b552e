package parsers

import "strings"

// OpensThinking reports whether a rendered prompt ends inside a think block of p's family:
// with its start tag and perhaps newlines. It is what [Turn.ThinkOpen] asks. Families without
// tags of their own are asked for <think>.
func OpensThinking(p ReasoningParser, prompt string) bool {
	end := strings.TrimRight(prompt, "\n")
	starts := []string{"<think>"}
	if f, ok := p.(interface{ opens(end string) []string }); ok {
		starts = f.opens(end)
	}
	for _, s := range starts {
		if strings.HasSuffix(end, strings.TrimRight(s, "\n")) {
			return true
		}
	}
	return false
}

func (g thinkTags) opens(string) []string { return []string{g.start, g.start + g.label} }

func (minimaxM3Reasoning) opens(string) []string { return []string{minimaxM3Think.start} }

func (kimiK3Reasoning) opens(string) []string { return []string{kimiK3ThinkOpen} }

func (k2HorizonReasoning) opens(string) []string {
	var starts []string
	for _, g := range k2HorizonThinks {
		starts = append(starts, g.start)
	}
	return starts
}

// opens takes the suffix from the prompt's last tag.
func (hunyuanReasoning) opens(end string) []string {
	suffix, _ := tagSuffix(end[max(0, strings.LastIndexByte(end, '<')):], "<think")
	return []string{"<think" + suffix + ">"}
}
