package grant

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Peer is a pod of the node that a rule may select.
type Peer struct {
	UID             string
	Namespace       string
	NamespaceLabels map[string]string
	Labels          map[string]string
	// Grafted says that the agent knows the pod by its UID.
	Grafted bool
	// Addrs are the pod's own; none, if it is in the node's network.
	Addrs []netip.Addr
}

// The limits of the agent. sourcesMax is for the sources of a rule; rowsMax for those of all ingress
// rules of a container, where a rule without any is one, and one row is the agent's; sizeMax for a
// grant, in bytes.
const (
	sourcesMax = 2048
	rowsMax    = 8192
	sizeMax    = 1 << 20
)

// errUnixFrom says why a rule has no sources.
var errUnixFrom = errors.New("from is for endpoints with an address, and this one is a unix socket; leave from out")

// block is a prefix without some parts of it.
type block struct {
	cidr   netip.Prefix
	except []netip.Prefix
}

// has tells whether a block has all of a prefix, which is none that is wider than one of the block.
func (b block) has(p netip.Prefix) bool {
	return contains(b.cidr, p) && !slices.ContainsFunc(b.except, func(e netip.Prefix) bool { return contains(e, p) })
}

// Peers are the pods of a node at one time. They keep what lists of policies (from) mean, so that a list is read
// once and not for each pod that a policy selects.
type Peers struct {
	list []Peer

	mu    sync.Mutex // guards what follows
	lists map[listKey]keptList
	size  int // of what was read since all lists were dropped, in bytes
}

// listsMax is the size of the lists that are kept, in bytes. If they have more, all of them are read again: so those of
// policies that are gone do not stay.
const listsMax = 16 << 20

// listKey is the list of a rule.
type listKey struct {
	policy types.UID
	rule   int
}

// keptList is a list as it is in a generation of its policy.
type keptList struct {
	generation int64
	sources    func() *sources
}

// NewPeers makes Peers of pods, which the caller changes no more.
func NewPeers(list []Peer) *Peers {
	return &Peers{list: list, lists: map[listKey]keptList{}}
}

// of returns who reaches the servers of a policy's ingress rule.
func (p *Peers) of(policy *v1alpha1.GraftPolicy, namespace string, rule int) *sources {
	read := func() *sources { return sourcesOf(policy.Spec.Ingress[rule].From, namespace, p.list) }
	if policy.UID == "" {
		return read() // no API server has it, so nothing says that it is the same one the next time
	}
	return p.kept(listKey{policy.UID, rule}, policy.Generation, read)()
}

// kept returns the list of a rule in a generation of its policy, which is the only one that is kept.
func (p *Peers) kept(key listKey, generation int64, read func() *sources) func() *sources {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept, found := p.lists[key]
	if found && kept.generation == generation {
		return kept.sources
	}
	if p.size > listsMax {
		clear(p.lists)
		p.size = 0
	}
	kept = keptList{generation, sync.OnceValue(func() *sources {
		s := read()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.size += s.size()
		return s
	})}
	p.lists[key] = kept
	return kept.sources
}

// sources are who reaches the servers of a rule.
type sources struct {
	text  string   // a digest: two lists with the same one select the same, whatever pods there are
	pods  []string // UIDs of grafted pods, sorted
	words []string // prefixes, as the agent reads them
	err   error
}

// size returns about how many bytes of memory sources have.
func (s *sources) size() int {
	const object, word = 256, 16
	n := object + word*(len(s.pods)+len(s.words))
	for _, w := range s.words {
		n += len(w)
	}
	if s.err != nil {
		n += len(s.err.Error())
	}
	return n
}

// sourcesOf reads a list of a policy of a namespace.
func sourcesOf(from []v1alpha1.Peer, namespace string, peers []Peer) *sources {
	blocks, selectors, err := readPeers(from, namespace)
	if err != nil {
		return &sources{err: err}
	}
	texts := wordsOf(blocks)
	for _, s := range selectors {
		texts = append(texts, s.String())
	}
	slices.Sort(texts)
	s := &sources{text: fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(slices.Compact(texts), "+"))))}
	for _, p := range peers {
		if !slices.ContainsFunc(selectors, func(s selector) bool { return s.selects(&p) }) {
			continue
		}
		if p.Grafted {
			s.pods = append(s.pods, p.UID)
		}
		for _, a := range p.Addrs {
			blocks = append(blocks, block{cidr: netip.PrefixFrom(a, a.BitLen())})
		}
	}
	slices.Sort(s.pods)
	s.words = wordsOf(blocks)
	return s
}

// from returns who reaches the servers of a policy's ingress rule; nil: everybody.
func (d *decider) from(p *v1alpha1.GraftPolicy, rule int) *sources {
	from := p.Spec.Ingress[rule].From
	switch {
	case len(from) == 0:
		return nil
	case slices.ContainsFunc(from, func(f v1alpha1.Peer) bool { return f.IPBlock == nil }):
		return d.peers().of(p, d.Pod.Namespace, rule)
	}
	return sourcesOf(from, d.Pod.Namespace, nil)
}

// wordsFor returns sources as the agent reads them in the rule of a pod. The pod itself reaches its servers in
// any case. So nobody else does, if nothing is selected.
func (s *sources) wordsFor(pod types.UID) (string, error) {
	if s == nil {
		return "", nil
	}
	words := []string{"from:pod:" + string(pod)}
	for _, uid := range s.pods {
		if uid != string(pod) {
			words = append(words, "from:pod:"+uid)
		}
	}
	words = append(words, s.words...)
	if len(words) > sourcesMax {
		return "", fmt.Errorf("from has %d prefixes and pods of this node, at most %d may be; select fewer pods, or write their prefix as an ipBlock", len(words), sourcesMax)
	}
	return "+" + strings.Join(words, "+"), nil
}

// size refuses a grant that is more than the agent takes.
func size(g *api.Grant) error {
	for _, c := range slices.Sorted(maps.Keys(g.Containers)) {
		rows := 1
		for _, rule := range g.Containers[c].Ingress {
			rows += max(1, strings.Count(rule, "+from:")+strings.Count(rule, "+except:"))
		}
		if rows > rowsMax {
			return fmt.Errorf("the ingress rules of container %s have %d prefixes and pods of this node, at most %d may be; select fewer pods, or write their prefix as an ipBlock", c, rows, rowsMax)
		}
	}
	text, err := json.Marshal(g)
	if err == nil && len(text) > sizeMax {
		err = fmt.Errorf("the rules of the pod have %d bytes, at most %d may be; write fewer rules, or fewer and wider prefixes", len(text), sizeMax)
	}
	return err
}

// selector is a part of a list that selects pods: those of some namespaces, or of one if namespaces is nil.
type selector struct {
	namespace        string
	namespaces, pods labels.Selector
}

// String writes a selector so that two with the same text select the same.
func (s selector) String() string {
	if s.namespaces == nil {
		return "pods " + s.pods.String()
	}
	return "namespaces " + s.namespaces.String() + " pods " + s.pods.String()
}

// selects tells whether a selector selects a pod.
func (s selector) selects(p *Peer) bool {
	if s.namespaces == nil {
		return p.Namespace == s.namespace && s.pods.Matches(labels.Set(p.Labels))
	}
	return s.namespaces.Matches(labels.Set(p.NamespaceLabels)) && s.pods.Matches(labels.Set(p.Labels))
}

// readPeers returns the blocks and the selectors of a list, and what is wrong with it.
func readPeers(from []v1alpha1.Peer, namespace string) (blocks []block, selectors []selector, err error) {
	for i := range from {
		f := &from[i]
		switch {
		case f.IPBlock != nil:
			var b block
			if b, err = blockOf(f.IPBlock); err == nil {
				blocks = append(blocks, b)
			}
		case f.PodSelector == nil && f.NamespaceSelector == nil:
			err = errors.New("it has neither an ipBlock nor a selector")
		default:
			var s selector
			if s, err = selectorOf(f, namespace); err == nil {
				selectors = append(selectors, s)
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("from %d: %w", i, err)
		}
	}
	return blocks, selectors, nil
}

func selectorOf(f *v1alpha1.Peer, namespace string) (s selector, err error) {
	s = selector{namespace: namespace, pods: labels.Everything()}
	if f.PodSelector != nil {
		if s.pods, err = f.PodSelector.Selector(); err != nil {
			return s, err
		}
	}
	if f.NamespaceSelector != nil {
		s.namespaces, err = f.NamespaceSelector.Selector()
	}
	return s, err
}

func blockOf(b *v1alpha1.IPBlock) (is block, err error) {
	if is.cidr, err = parsePrefix(b.CIDR); err != nil {
		return is, err
	}
	for _, text := range b.Except {
		e, err := parsePrefix(text)
		if err == nil && !contains(is.cidr, e) {
			err = fmt.Errorf("except %s is not in %s", e, is.cidr)
		}
		if err != nil {
			return is, err
		}
		is.except = append(is.except, e)
	}
	return is, nil
}

// wordsOf returns blocks as sources. Of these the longest prefix decides; of blocks, an address is in
// all if it is in one. So each prefix is let in if a block has it.
func wordsOf(blocks []block) (words []string) {
	var all []netip.Prefix
	for _, b := range blocks {
		all = append(append(all, b.cidr), b.except...)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if a.Bits() != b.Bits() {
			return a.Bits() - b.Bits()
		}
		return a.Addr().Compare(b.Addr())
	})
	var in []netip.Prefix
	for _, p := range slices.Compact(all) {
		switch {
		case slices.ContainsFunc(blocks, func(b block) bool { return b.has(p) }):
			in = append(in, p)
			words = append(words, "from:"+p.String())
		case slices.ContainsFunc(in, func(q netip.Prefix) bool { return contains(q, p) }):
			words = append(words, "except:"+p.String())
		}
	}
	return words
}

// checkPeers tells what is wrong with the list of a rule for an endpoint.
func checkPeers(from []v1alpha1.Peer, e *v1alpha1.GraftEndpoint) error {
	if len(from) > 0 && e.Spec.Type == v1alpha1.Unix {
		return fmt.Errorf("GraftEndpoint %s: %w", e.Name, errUnixFrom)
	}
	_, _, err := readPeers(from, "")
	return err
}
