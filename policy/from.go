package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Source is a part of who reaches the servers of an ingress rule: a prefix, or a pod.
type Source struct {
	// Prefix has the addresses from which connections and datagrams come. It is not valid if Pod is
	// set.
	Prefix netip.Prefix
	// Except excludes the prefix.
	Except bool
	// Pod is the UID of a pod of this node, for its grafted containers: they have addresses of the
	// host, which others have too.
	Pod string
}

// The limits of sources. SourcesMax is SOURCES_MAX of the BPF programs, for all rules of a
// container.
const (
	SourcesMax     = 8192
	ruleSourcesMax = 2048
	podMax         = 64 // bytes of a UID
)

// The words before a source.
const (
	fromWord   = "from:"
	exceptWord = "except:"
	podWord    = "pod:"
)

// ParseSource reads from:PREFIX, except:PREFIX or from:pod:UID.
func ParseSource(s string) (Source, error) {
	text, isFrom := strings.CutPrefix(s, fromWord)
	text, isExcept := strings.CutPrefix(text, exceptWord)
	if isFrom == isExcept {
		return Source{}, fmt.Errorf("unknown word %q; there are %s, +from:PREFIX, +from:pod:UID and +except:PREFIX", "+"+s, ownWord)
	}
	if uid, isPod := strings.CutPrefix(text, podWord); isPod {
		return podSource(uid, isExcept)
	}
	p, err := ParsePrefix(text)
	return Source{Prefix: p, Except: isExcept}, err
}

func podSource(uid string, isExcept bool) (Source, error) {
	switch {
	case isExcept:
		return Source{}, errors.New("+except: has a prefix; leave +from:pod: of that pod out instead")
	case uid == "" || len(uid) > podMax || strings.ContainsFunc(uid, notOfUID):
		return Source{}, fmt.Errorf("%q is no UID of a pod, which has 1 to %d letters, digits and hyphens", uid, podMax)
	}
	return Source{Pod: uid}, nil
}

func notOfUID(r rune) bool {
	return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

// String returns the source as ParseSource reads it.
func (s Source) String() string {
	switch {
	case s.Pod != "":
		return fromWord + podWord + s.Pod
	case s.Except:
		return exceptWord + s.Prefix.String()
	}
	return fromWord + s.Prefix.String()
}

// From says from whom servers take connections and datagrams. The longest prefix that has an
// address decides. Without any source it is everybody.
type From []Source

// ParseFrom reads sources as they stand in a rule, each after a "+".
func ParseFrom(s string) (f From, err error) {
	if s == "" {
		return nil, nil
	}
	words, isWord := strings.CutPrefix(s, "+")
	if !isWord {
		return nil, fmt.Errorf("%q does not begin with +from", s)
	}
	for _, w := range strings.Split(words, "+") {
		source, err := ParseSource(w)
		if err != nil {
			return nil, err
		}
		f = append(f, source)
	}
	return f, f.check()
}

// String returns the sources as they stand in a rule.
func (f From) String() string {
	var b strings.Builder
	for _, s := range f {
		b.WriteString("+" + s.String())
	}
	return b.String()
}

// Admits tells whether an address is one of the sources. Pods have no addresses here.
func (f From) Admits(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	longest, admits := -1, len(f) == 0
	for _, s := range f {
		if s.Pod == "" && s.Prefix.Contains(addr) && s.Prefix.Bits() > longest {
			longest, admits = s.Prefix.Bits(), !s.Except
		}
	}
	return admits
}

// Pods returns the UIDs of the pods among the sources.
func (f From) Pods() (uids []string) {
	for _, s := range f {
		if s.Pod != "" {
			uids = append(uids, s.Pod)
		}
	}
	return uids
}

// check refuses sources that contradict each other or have no effect.
func (f From) check() error {
	if len(f) > ruleSourcesMax {
		return fmt.Errorf("%d sources, at most %d may be", len(f), ruleSourcesMax)
	}
	for i, s := range f {
		switch {
		case slices.ContainsFunc(f[:i], func(o Source) bool { return o.Prefix == s.Prefix && o.Pod == s.Pod }):
			return fmt.Errorf("+%s: there is a source of the same %s", s, kindOf(s))
		case s.Except && !slices.ContainsFunc(f, func(o Source) bool { return o.Pod == "" && !o.Except && contains(o.Prefix, s.Prefix) }):
			return fmt.Errorf("+%s: no +from: of the rule has this prefix, so there is nothing to exclude", s)
		}
	}
	return nil
}

func kindOf(s Source) string {
	if s.Pod != "" {
		return "pod"
	}
	return "prefix"
}
