"""Asset checks on versions: is the head whole, is it current, and is it what it may be?"""
