package wire

import (
	"fmt"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// This file has the rules of message content: text, lists of parts, and the spellings of
// images (reference session service 2.1, 2.10).

// content reads content that is no system list into m. An assistant message may be empty even
// without calls and reasoning, unlike the reference's: a turn of no visible tokens is one we
// hand out ourselves, so its replay must be accepted.
func (r ruler) content(content canon.Value, m *canon.Message, at path) *Error {
	switch content.Kind() {
	case canon.Null:
		if m.Role != canon.Assistant {
			return r.fail("%s.content must not be null", at)
		}
		return nil
	case canon.String:
		if content.Str() == "" && m.Role != canon.Assistant && m.Role != canon.Tool {
			return r.fail("%s.content must not be empty", at)
		}
		m.Content = content.Str()
		return nil
	case canon.Array:
		parts, e := r.parts(content.Elems(), at)
		if e != nil {
			return e
		}
		setContent(m, parts)
		return nil
	default:
		return r.fail("%s.content must be str, list or null, not %s", at, content.TypeName())
	}
}

// setContent puts parts into a message: text alone becomes one string.
func setContent(m *canon.Message, parts []canon.Part) {
	if len(parts) == 1 && parts[0].Image == "" {
		m.Content = parts[0].Text
		return
	}
	size := 0
	for _, p := range parts {
		if p.Image != "" {
			m.Parts = parts
			return
		}
		size += len(p.Text)
	}
	var text strings.Builder
	text.Grow(size)
	for _, p := range parts {
		text.WriteString(p.Text)
	}
	m.Content = text.String()
}

func (r ruler) parts(list []canon.Value, at path) ([]canon.Part, *Error) {
	if len(list) == 0 {
		return nil, r.fail("%s.content must not be an empty list", at)
	}
	parts := make([]canon.Part, len(list))
	for i, v := range list {
		p, e := r.part(v, item{at, i})
		if e != nil {
			return nil, e
		}
		parts[i] = p
	}
	return parts, nil
}

// An item is one item of a message's content, for error texts.
type item struct {
	message path
	index   int
}

func (i item) String() string { return fmt.Sprintf("%s.content[%d]", i.message, i.index) }

func (r ruler) part(part canon.Value, at fmt.Stringer) (canon.Part, *Error) {
	if part.Kind() != canon.Object {
		return canon.Part{}, r.fail("%s must be dict, not %s", at, part.TypeName())
	}
	if holdsImage(part) {
		url, e := r.image(part, at)
		return canon.Part{Image: url}, e
	}
	text, _ := part.Get("text")
	if text.Kind() != canon.String {
		kind, _ := part.Get("type")
		return canon.Part{}, r.fail("%s of type %s has no text; only text and images are supported", at, describe(kind))
	}
	if text.Str() == "" {
		return canon.Part{}, r.fail("%s.text must not be empty", at)
	}
	return canon.Part{Text: text.Str()}, nil
}

// systemList reads a system message that is a list: each text is a piece of its own, as in the
// other dialects' system fields. What has no text is left out, and so is a message without any.
func (r ruler) systemList(list []canon.Value, m canon.Message, at path) (canon.Meaning, *Error) {
	if len(list) == 0 {
		return canon.Meaning{}, r.fail("%s.content must not be an empty list", at)
	}
	var texts, skipped []string
	for i, v := range list {
		if v.Kind() != canon.Object {
			return canon.Meaning{}, r.fail("%s must be dict, not %s", item{at, i}, v.TypeName())
		}
		text, _ := v.Get("text")
		if text.Kind() != canon.String {
			skipped = addSkipped(skipped, skippedName("messages.content", v))
			continue
		}
		if text.Str() == "" {
			return canon.Meaning{}, r.fail("%s.text must not be empty", item{at, i})
		}
		texts = append(texts, text.Str())
	}
	if len(texts) == 0 {
		return canon.Meaning{Skipped: skipped}, nil
	}
	m.Content = strings.Join(texts, systemGlue)
	return canon.Meaning{Messages: []*canon.Message{canon.NewMessage(m)}, Skipped: skipped}, nil
}

// systemGlue joins the pieces of a system message.
const systemGlue = "\n\n"

// holdsImage reports whether a part is an image by its type, or by its keys if it has none, as
// the message lists of some datasets write it.
func holdsImage(part canon.Value) bool {
	kind, ok := part.Get("type")
	if !ok {
		_, url := part.Get("image_url")
		_, image := part.Get("image")
		return url || image
	}
	switch kind.Str() {
	case "image_url", "image", "input_image":
		return kind.Kind() == canon.String
	}
	return false
}

// imageKeys are the members that hold an image's URL: those of OpenAI's Chat and Responses
// parts, and of the Hugging Face processors.
var imageKeys = []string{"image_url", "image", "url"}

// image returns the URL of an image in any spelling: a string or {"url": …} under one of
// imageKeys, or Anthropic's source object. detail takes no part in identity.
func (r ruler) image(part canon.Value, at fmt.Stringer) (string, *Error) {
	for _, key := range imageKeys {
		v, _ := part.Get(key)
		if v.Kind() == canon.Object {
			v, _ = v.Get("url")
		} else if v.IsNull() {
			continue
		}
		if v.Kind() != canon.String || v.Str() == "" {
			return "", r.fail(`%s.%s must be a non-empty URL or {"url": URL}, not %s`, at, key, describe(v))
		}
		return r.imageURL(v.Str(), at)
	}
	if _, ok := part.Get("source"); ok {
		return r.imageSource(part, at)
	}
	if _, ok := part.Get("file_id"); ok {
		return "", r.fail("%s: file ids are not supported; send the image as an http(s) or data:image/ URL", at)
	}
	return "", r.fail(`%s has no image; expected "image_url": {"url": URL}`, at)
}

// imageSource reads the source member of an Anthropic image block.
func (r ruler) imageSource(part canon.Value, at fmt.Stringer) (string, *Error) {
	source, _ := part.Get("source")
	if source.Kind() != canon.Object {
		return "", r.fail("%s.source must be dict, not %s", at, source.TypeName())
	}
	switch kind, _ := source.Get("type"); kind.Str() {
	case "base64":
		media, _ := source.Get("media_type")
		if media.Kind() != canon.String || !strings.HasPrefix(media.Str(), "image/") {
			return "", r.fail("%s.source.media_type must be an image type such as image/png, not %s", at, describe(media))
		}
		data, _ := source.Get("data")
		if data.Kind() != canon.String || data.Str() == "" {
			return "", r.fail("%s.source.data must be a non-empty str, not %s", at, describe(data))
		}
		return "data:" + media.Str() + ";base64," + data.Str(), nil
	case "url":
		url, _ := source.Get("url")
		if url.Kind() != canon.String || url.Str() == "" {
			return "", r.fail("%s.source.url must be a non-empty str, not %s", at, describe(url))
		}
		return r.imageURL(url.Str(), at)
	default:
		return "", r.fail("%s.source.type %s is not supported; expected base64 or url", at, describe(kind))
	}
}

// imageURL lets only URLs pass that cannot name a file of this machine or the backend's.
func (r ruler) imageURL(url string, at fmt.Stringer) (string, *Error) {
	for _, scheme := range []string{"https://", "http://", "data:image/"} {
		if len(url) > len(scheme) && strings.EqualFold(url[:len(scheme)], scheme) {
			return url, nil
		}
	}
	return "", r.fail("%s: an image must be an http(s) or data:image/ URL, not %q: image URLs never open local files",
		at, canon.Shorten(url, 40))
}
