package main

import (
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The described machine's cgroup tree: plain files that look like cgroup v2, below `tree`. Containers of the real runtime run in the
// real tree, which has the real machine's CPUs; their CPUs, memory nodes and quotas are written here. nri-pin's cgroupRoot is here.
const (
	base = "/run/rig"
	tree = base + "/cgroup"
	v1   = "/sys/fs/cgroup/cpu"
	v2   = "/sys/fs/cgroup"
)

var fresh = map[string]string{
	"cpuset.cpus": "", "cpuset.mems": "", "cpuset.cpus.effective": "", "cpuset.mems.effective": "", "cpuset.cpus.partition": "member",
	"cpu.max": "max 100000", "cgroup.procs": "", "cgroup.type": "domain", "cgroup.controllers": "cpuset cpu io memory hugetlb pids",
	"cgroup.subtree_control": "cpuset cpu io memory hugetlb pids", "cgroup.events": "populated 1\nfrozen 0",
}

func slurp(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

// put writes only what differs, so that nobody who watches the file sees a change where there is none, and makes no file: its folder
// may be about to go.
func put(path, value string) {
	if slurp(path) == value {
		return
	}
	if file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o644); err == nil {
		file.WriteString(value + "\n")
		file.Close()
	}
}

// folderOf makes the folders of a cgroup path, and returns the last.
func folderOf(path string) string {
	folder := tree
	for _, part := range append([]string{""}, strings.Split(strings.Trim(path, "/"), "/")...) {
		folder = filepath.Join(folder, part)
		if os.MkdirAll(folder, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(folder, "cgroup.events")); err == nil {
			continue
		}
		for name, value := range fresh {
			if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
				os.WriteFile(filepath.Join(folder, name), []byte(value+"\n"), 0o644)
			}
		}
		if strings.HasPrefix(part, "pod") {
			copyQuota(folder)
		}
	}
	return folder
}

func quotaLine(quota, period string) string {
	if period == "" || period == "0" {
		period = "100000"
	}
	if number, err := strconv.ParseInt(quota, 10, 64); err != nil || number <= 0 {
		return "max " + period
	}
	return quota + " " + period
}

// realQuota is the quota that the kubelet gave a pod; "" if the pod's cgroup is gone.
func realQuota(relative string) string {
	if quota := slurp(v1 + relative + "/cpu.cfs_quota_us"); quota != "" {
		return quotaLine(quota, slurp(v1+relative+"/cpu.cfs_period_us"))
	}
	return slurp(v2 + relative + "/cpu.max")
}

// copyQuota writes a pod's quota once for each value that the kubelet wrote: others may write after it. False: the pod is gone.
func copyQuota(folder string) bool {
	relative := strings.TrimPrefix(folder, tree)
	line := realQuota(relative)
	seen := filepath.Join(base, "quota", filepath.Base(folder))
	if line == "" {
		os.Remove(seen)
		return false
	}
	if slurp(seen) != line {
		os.MkdirAll(filepath.Dir(seen), 0o755)
		os.WriteFile(seen, []byte(line), 0o644)
		put(filepath.Join(folder, "cpu.max"), line)
	}
	return true
}

type set [128]uint64

func parse(text string) (found set, isEmpty bool) {
	isEmpty = true
	for _, word := range strings.Split(text, ",") {
		first, last, isRange := strings.Cut(word, "-")
		from, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		to := from
		if isRange {
			to, _ = strconv.Atoi(last)
		}
		for ; from <= to && from < 64*len(found); from++ {
			found[from/64] |= 1 << (from % 64)
			isEmpty = false
		}
	}
	return
}

func format(s set) string {
	var words []string
	first, last := -1, -2
	flush := func() {
		if first >= 0 && first == last {
			words = append(words, strconv.Itoa(first))
		} else if first >= 0 {
			words = append(words, strconv.Itoa(first)+"-"+strconv.Itoa(last))
		}
	}
	for index, word := range s {
		for ; word != 0; word &= word - 1 {
			id := index*64 + bits.TrailingZeros64(word)
			if id != last+1 {
				flush()
				first = id
			}
			last = id
		}
	}
	flush()
	return strings.Join(words, ",")
}

// effective is the rule of cgroup v2: what both have, and the parent's where that is nothing.
func effective(own, parent string) string {
	wanted, isEmpty := parse(own)
	if isEmpty {
		return parent
	}
	both, _ := parse(parent)
	some := false
	for index := range both {
		both[index] &= wanted[index]
		some = some || both[index] != 0
	}
	if !some {
		return parent
	}
	return format(both)
}

func writeEffective(folder, cpus, mems string) {
	cpus = effective(slurp(folder+"/cpuset.cpus"), cpus)
	mems = effective(slurp(folder+"/cpuset.mems"), mems)
	put(folder+"/cpuset.cpus.effective", cpus)
	put(folder+"/cpuset.mems.effective", mems)
	entries, _ := os.ReadDir(folder)
	for _, entry := range entries {
		if entry.IsDir() {
			writeEffective(filepath.Join(folder, entry.Name()), cpus, mems)
		}
	}
}

func writeAllEffective() { writeEffective(tree, slurp(base+"/online"), slurp(base+"/mems")) }
