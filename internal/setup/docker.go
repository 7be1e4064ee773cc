package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// # Docker
//
// daemon.json has no comments, so only its key marks our entry. The file is edited as a text, by
// the offsets of its tokens: everything else keeps its bytes.

// member is a key of an object with its value, by the offsets in the text.
type member struct {
	key        string
	begin, end int // from the quote of the key to the end of the value
	value      int // where the value begins
}

// members returns the members of the object at an offset of a text, and the offset after its "{".
func members(text []byte, at int) (list []member, inside int, err error) {
	d := json.NewDecoder(bytes.NewReader(text[at:]))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return nil, 0, fmt.Errorf("no JSON object at byte %d: %w", at, err)
	}
	inside = at + int(d.InputOffset())
	for end := inside; d.More(); end = list[len(list)-1].end {
		token, err := d.Token()
		if err != nil {
			return nil, 0, err
		}
		key, _ := token.(string)
		begin := end + bytes.IndexByte(text[end:], '"') // a comma and blanks are between
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, 0, err
		}
		if get(list, key) != nil {
			return nil, 0, fmt.Errorf("the file has the key %q twice", key)
		}
		last := at + int(d.InputOffset())
		list = append(list, member{key, begin, last, last - len(value)})
	}
	_, err = d.Token()
	return list, inside, err
}

// get finds a member by its key.
func get(list []member, key string) *member {
	for i := range list {
		if list[i].key == key {
			return &list[i]
		}
	}
	return nil
}

const dockerIndent = "    "

func addDocker(text []byte, runtime string) ([]byte, error) {
	path, err := json.Marshal(runtime)
	if err != nil {
		return nil, err
	}
	entry := fmt.Sprintf(`"tsugiki": { "path": %s }`, path)
	if len(bytes.TrimSpace(text)) == 0 {
		return dockerNew(entry), nil
	}
	if !json.Valid(text) {
		return nil, errors.New("this is no JSON; correct it first (dockerd --validate)")
	}
	top, inside, err := members(text, 0)
	if err != nil {
		return nil, err
	}
	runtimes := get(top, "runtimes")
	if runtimes == nil {
		return insert(text, inside, len(top) > 0, fmt.Sprintf(`"runtimes": { %s }`, entry), dockerIndent), nil
	}
	list, inside, err := members(text, runtimes.value)
	if err != nil {
		return nil, err
	}
	ours := get(list, "tsugiki")
	if ours == nil {
		return insert(text, inside, len(list) > 0, entry, dockerIndent+dockerIndent), nil
	}
	var has struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(text[ours.value:ours.end], &has) != nil || has.Path != runtime {
		return nil, fmt.Errorf("%w %s: %s", ErrForeign, Name, text[ours.value:ours.end])
	}
	return text, nil
}

// dockerNew returns the text of a new file.
func dockerNew(entry string) []byte {
	return fmt.Appendf(nil, "{\n%s\"runtimes\": { %s }\n}\n", dockerIndent, entry)
}

// insert puts a member before the others of an object. cut removes exactly this text.
func insert(text []byte, inside int, others bool, entry, indent string) []byte {
	switch {
	case !others:
		entry = " " + entry + " "
	case bytes.HasPrefix(bytes.TrimLeft(text[inside:], " \t"), []byte("\n")):
		entry = "\n" + indent + entry + ","
	default:
		entry = " " + entry + ","
	}
	return bytes.Join([][]byte{text[:inside], []byte(entry), text[inside:]}, nil)
}

func removeDocker(text []byte) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return text, nil
	}
	top, _, err := members(text, 0)
	if err != nil {
		return nil, err
	}
	runtimes := get(top, "runtimes")
	if runtimes == nil {
		return text, nil
	}
	list, _, err := members(text, runtimes.value)
	if err != nil {
		return nil, err
	}
	ours := get(list, "tsugiki")
	if ours == nil {
		return text, nil
	}
	entry := text[ours.begin:ours.end]
	switch {
	case string(text[runtimes.begin:runtimes.end]) != fmt.Sprintf(`"runtimes": { %s }`, entry):
		return cut(text, *ours, len(list) > 1), nil
	case bytes.Equal(text, dockerNew(string(entry))):
		return nil, nil
	}
	return cut(text, *runtimes, len(top) > 1), nil
}

// cut removes a member, its comma, and the blanks of insert.
func cut(text []byte, m member, others bool) []byte {
	before, after := text[:m.begin], text[m.end:]
	if !others {
		return append(bytes.Clone(bytes.TrimSuffix(before, []byte(" "))), bytes.TrimPrefix(after, []byte(" "))...)
	}
	before = bytes.TrimRight(before, " \t\r\n")
	if rest := bytes.TrimLeft(after, " \t\r\n"); bytes.HasPrefix(rest, []byte(",")) {
		after = rest[1:]
	} else {
		before = bytes.TrimSuffix(before, []byte(","))
	}
	return append(bytes.Clone(before), after...)
}
