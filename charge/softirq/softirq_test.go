package softirq

import "testing"

func TestLoad(t *testing.T) {
	m, err := New()
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer m.Close()
}
