package sweep

import (
	"bytes"
	"testing"
)

func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"version":1,"figures":["one"],"options":{"seed":7}}` + "\n" + `{"figure":"one","key":"a","round":0,"samples":[]}` + "\n"))
	f.Add([]byte("{}\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		j := &journal{header: header{Figures: []string{"one"}}, steps: map[string][]entry{}, keys: map[string]bool{}}
		used, err := j.parse(data)
		if err == nil && (len(used) == 0 || used[len(used)-1] != '\n' || !bytes.HasPrefix(data, used)) {
			t.Errorf("used %q of %q", used, data)
		}
	})
}
