"""The stories: words and sentence patterns as data (the notation is described in ``templates``).

Each plot writes four and a half sentences after "One quiet Monday, Anna". Things, animals and friends are remembered
where they enter and come back by ``{@...}``; pronouns and verbs which must agree are features.
"""

from .templates import Option, pick


_SHE = {"They": "She", "they": "she", "them": "her", "Their": "Her", "their": "her"}
_HE = {"They": "He", "they": "he", "them": "him", "Their": "His", "their": "his"}


_OPENING: dict[str, list[Option]] = {
    "story": pick("{opening} {hero=hero} {plot}"),
    "opening": pick("One {mood} {day},*4 | On a {mood} {day},*3"),
    "mood": pick(
        "quiet*3 | windy*3 | sunny*3 | chilly*2 | busy*2 | lazy*2 | bright*2 | foggy*2 | calm*2 | sleepy | cheerful"
    ),
    "day": pick(
        "morning*4 | afternoon*3 | evening*2 | Monday*2 | Tuesday*2 | Wednesday | Thursday | Friday*2 | Saturday*3"
        " | Sunday*3"
    ),
    "plot": pick("{thief}*5 | {bake}*4 | {borrow}*4 | {buy}*4 | {lose}*4 | {find}*4 | {build}*4 | {practice}*3"),
}

_PEOPLE: dict[str, list[Option]] = {
    "hero": [
        *pick("Anna*3 | Clara*2 | Ella*2 | Grace*2 | Ivy | Julia*2 | Lucy*2 | Nora*2 | Zoe*2", **_SHE),
        *pick("Adam*2 | Ben*3 | Felix*2 | Henry*2 | Jack*2 | Leo*2 | Noah | Sam*2 | Tom*3", **_HE),
    ],
    "friend": [
        *pick("Bella*2 | Daisy*2 | Emma*3 | Gwen | Holly*2 | Kate*2 | Maya*2 | Penny*2 | Ruby*2", **_SHE),
        *pick("Albert*2 | Edgar*2 | Frank*2 | George*2 | Hugo*2 | Jasper*2 | Milo*2 | Otto*3 | Victor", **_HE),
    ],
    "relation": pick("neighbor*4 | cousin*4 | friend*4 | roommate*3 | coach*2 | dentist*2 | boss*2 | teacher*2"),
    "glad": pick("happy*3 | lucky*3 | grateful*2 | cheerful*2 | loved*2 | better*2 | calm"),
    "proud": pick("proud*4 | clever*3 | brave*2 | famous*2 | happy*2 | lucky*2 | wise | very tall"),
    "relieved": pick("grateful*2 | forgiven*3 | calm*2 | better*3 | happy*2 | brave"),
    "generous": pick("generous*3 | proud*2 | kind*2 | happy*2 | wise | very tall"),
}

# Lists that fit wherever they are used, so that few words make many stories.
_SHARED: dict[str, list[Option]] = {
    "a_fine": pick(
        "a huge*3 | a tiny*3 | a fancy*3 | a perfect*2 | a lovely*3 | a strange*3 | a splendid*2 | a purple*2"
        " | a heavy*2 | a mighty*2 | a secret | a serious | an elegant*2 | an enormous*2"
    ),
    "animal": [
        *pick("goose*4 | duck*3", goes="waddled"),
        *pick("crow*2 | seagull*2 | pigeon*2", goes="flew"),
        *pick("goat*3 | pony*2", goes="trotted"),
        *pick("squirrel*2 | raccoon*3", goes="scurried"),
    ],
    "a_being": pick(
        "a bossy*3 | a nervous*3 | a hungry*3 | a clever*2 | a grumpy*3 | a sleepy*2 | a polite*2 | an elegant*2"
        " | a tired*2 | a guilty*2 | a retired*3 | a seasick | a shy*2 | a famous"
    ),
    "figure": pick("camel*3 | giraffe*3 | penguin*3 | walrus*2 | pirate*3 | wizard*3 | queen*2 | clown*2 | sailor*2"),
    "food": pick(
        "sandwich*4 | bagel*2 | pie*3 | muffin*3 | pretzel*2 | burrito*2 | pancake*2 | cake*2 | cookie*2 | pickle"
    ),
    "number": pick("two*3 | three*4 | four*3 | five*2 | six*2 | seven*3 | nine*2 | forty"),
    "room": pick("kitchen*4 | garage*3 | attic*2 | bedroom*3 | closet*2 | basement*2 | garden*2"),
    "furniture": pick("sofa*3 | desk*2 | fridge*3 | bookcase*2 | bed*3 | piano*2 | table*3"),
    "lucky": pick("lucky*4 | favorite*4 | best*3 | red*2 | green | blue*2 | purple | striped*2 | famous"),
    "hue": pick("red*3 | blue*3 | green*2 | striped*3 | lucky*2 | borrowed*3 | stolen*2 | retired*2"),
    "item": pick("hat*4 | scarf*3 | whistle*2 | notebook*2 | spoon*2 | clock*2 | radio | bowl | guitar*2"),
    "tool": pick(
        "ladder*4 | hammer*2 | tent*2 | canoe*2 | trumpet*2 | tuba*2 | umbrella*2 | lamp | teapot | bicycle*2"
    ),
    "brought": pick("brought*4 | arrived with*2 | came with*2 | offered*2"),
    "softly": pick("politely*3 | slowly*2 | quietly*3 | gently*2 | sadly*2 | bravely*2 | loudly*2"),
    "under": pick("under*4 | beside*3 | behind*3 | near*2"),
    "clapped": pick("clapped*4 | cheered*3 | cried*2 | whistled*2 | danced*2 | bowed*2 | yawned | sneezed"),
    "plurals": pick("spoons*3 | pencils*3 | carrots*2 | candles*2 | umbrellas*2 | boxes*3 | pillows*3 | books*2"),
    "suddenly": pick("Soon*3 | Sadly*3 | Somehow*2 | Naturally*2"),
    "nearby": pick("Nearby*3 | Outside*2 | Soon*2"),
    "fed": pick("fed*3 | forgave*3 | thanked*2 | hugged*2"),
}

# A sandwich goes to the park; an animal has other plans.
_THIEF: dict[str, list[Option]] = {
    "thief": pick(
        "{took} {a_fine} {food=food} to the {outdoors}. {there}, {a_being} {animal=animal} {lurked} {under}"
        " a {landmark}. {theft} {@hero} {yelled}, but {@hero.their} {relation} {friend=friend} {laughed}."
        " {later} {@friend} {consoled}"
    ),
    "took": pick("took*3 | carried*2 | brought*2"),
    "there": pick("There*3 | Nearby*3 | Naturally*2"),
    "outdoors": pick("park*4 | beach*3 | lake*3 | river*2 | forest*2 | market*2"),
    "lurked": pick("was waiting*4 | was hiding*3 | was sleeping*2 | sat*3 | stood*2"),
    "landmark": pick("bench*3 | tree*3 | boat*2 | wagon*2"),
    "theft": pick(
        "It {snatched} the {@food} and {@animal.goes} {away}.*3"
        " | The {@animal} {snatched} the {@food} and {@animal.goes} {away}.*2"
    ),
    "snatched": pick("grabbed*3 | stole*3 | took*2"),
    "away": pick("away*3 | home*2 | over the hill*2 | past a wedding*2 | past a {figure}*4 | into a pond*2"),
    "yelled": pick("yelled*3 | chased it*3 | cried*2 | sighed*2 | whistled*2"),
    "laughed": pick("only {chuckled}*5 | {fed} the {@animal}*4 | didn't help*2 | wasn't sorry*2"),
    "chuckled": pick("laughed*4 | clapped*3 | yawned*2 | danced*2 | nodded"),
    "later": pick("Later*4 | Luckily*3 | Soon*2 | Then*2"),
    "consoled": pick(
        "shared {@friend.their} {food}, and {@hero} felt {glad}.*3"
        " | bought {@hero.them} another {@food}, and {@hero} felt {glad}.*2"
    ),
}

# A cake leans, and is held up by what there is.
_BAKE: dict[str, list[Option]] = {
    "bake": pick(
        "baked {a_fine} {cake=cake} for {@hero.their} {relation} {friend=friend}."
        " {suddenly}, {it_leaned} like {a_being} {figure}. {rescue} {@friend} {studied} the {@cake} and {verdict}."
        " {bake_end}"
    ),
    "cake": pick("cake*4 | pie*3 | pudding*3 | muffin*2 | pretzel | lasagna*2"),
    "it_leaned": pick("the {@cake} {leaned}*3 | it {leaned}*2"),
    "leaned": pick("leaned*4 | wobbled*3 | trembled*2 | swayed*2"),
    "rescue": pick(
        "{@hero.They} {propped} it up with {number} {hue} {props=plurals}.*3"
        " | So {@hero.they} {propped} it up with {number} {hue} {props=plurals}.*2"
        " | With {number} {hue} {props=plurals}, {@hero.they} {propped} it up.*2"
    ),
    "propped": pick("propped*3 | held*3 | bravely held | quickly propped"),
    "studied": pick("studied*3 | tasted*4 | admired*3 | hugged | bowed to"),
    "verdict": pick(
        "called it art*3 | asked for more*3 | took a picture*2 | gave a speech*2 | ate it all*3 | {clapped}*2"
        " | nodded {softly}*2"
    ),
    "bake_end": pick(
        "{@hero} felt {proud}, and the {@props} {props_end}.*3"
        " | {@friend} kept the {@props}, and {@hero} felt {proud}.*2"
        " | In the end, {@hero} felt {proud} and {fed_props} the {@props}.*2"
    ),
    "props_end": pick("were heroes*3 | got a medal*2 | took a bath*2 | needed a nap*2 | felt {proud}*2"),
    "fed_props": pick("thanked*3 | hugged*2 | bowed to*2 | kept"),
}

# A borrowed ladder stays rather long.
_BORROW: dict[str, list[Option]] = {
    "borrow": pick(
        "borrowed {a_fine} {tool=tool} from {@hero.their} {relation} {friend=friend}. {promise}"
        " After {number} {weeks}, it {remained} {under} {@hero.their} {furniture}."
        " {@friend} {visited} and {softly} {coughed_at} the {@tool}. {@hero} {blushed}, {return}"
    ),
    "promise": pick(
        "{@hero.They} only needed it for {a_while}.*3 | {@hero.They} promised to return it in {a_while}.*3"
        " | It was only for {a_while}, {@hero.they} {swore}.*2"
    ),
    "a_while": pick("an hour*3 | a minute*2 | a day*3 | a week*2 | {number} minutes*2"),
    "weeks": pick("weeks*4 | months*4 | years*3 | winters*2 | birthdays*2"),
    "remained": pick("was still*4 | still stood*2 | still slept*2"),
    "visited": pick("visited*3 | came by*3"),
    "coughed_at": pick("{coughed} at*8 | asked about*3 | hugged*2 | bowed to*2"),
    "coughed": pick("coughed*2 | pointed*3 | stared*3 | waved*2 | nodded*2 | sneezed | whistled | yawned"),
    "blushed": pick("blushed*3 | laughed*2 | apologized*3 | sighed*2 | cried*2 | bowed*2 | nodded"),
    "return": pick(
        "returned it with {a_fine} {food}, and felt {relieved}.*4"
        " | but {@friend} let {@hero.them} keep it and felt {generous}.*3"
    ),
    "swore": pick("swore*3 | said*3 | whispered*2 | promised*2"),
}

# A thing with a past falls off a shelf.
_BUY: dict[str, list[Option]] = {
    "buy": pick(
        "bought {a_fine} {gadget=gadget} at {shop}. {legend}"
        " {suddenly}, it {fell} {@hero.their} {furniture} and broke into {number} pieces."
        " {@hero.Their} {relation} {friend=friend} {brought} {glue=glue} and {comfort}. {repair}"
    ),
    "gadget": pick("teapot*4 | vase*3 | lamp*3 | clock*3 | mirror*2 | radio*2 | guitar*2 | violin*2 | bowl*2"),
    "shop": pick("the market*4 | the museum*2 | an auction*2 | a wedding*2 | the beach | the park"),
    "legend": pick(
        "The {seller} {swore} it once belonged to {a_being} {figure}.*3 | It once belonged to {a_being} {figure}.*2"
    ),
    "seller": pick("seller*3 | owner*2"),
    "fell": pick("fell off*4 | jumped off*2 | rolled off*2 | flew off"),
    "glue": pick("glue*4 | tape*3 | gum*2 | honey*2"),
    "comfort": pick("cookies*3 | soup*3 | patience*3 | tea*2 | pie*2 | cake | {a_being} {animal}*4"),
    "repair": pick(
        "The {@gadget} {smelled_of} {@glue}, but {@hero} felt {glad}.*4"
        " | {@friend} {mended} the {@gadget}, and {@hero} felt {glad}.*3"
    ),
    "smelled_of": pick("smelled of*3 | was mostly*2"),
    "mended": pick("fixed*3 | saved*2"),
}

# Something is lost, and an animal sits on it.
_LOSE: dict[str, list[Option]] = {
    "lose": pick(
        "{lost} {@hero.their} {lucky} {item=item}. {search} {@hero.Their} {relation} {friend=friend}"
        " helped by {helping}. After {number} {hours}, {@friend} {spotted} the {@item} {under}"
        " {a_being} {animal=animal}. {reunion}"
    ),
    "lost": pick("lost*4 | couldn't find*3"),
    "search": pick(
        "{@hero.They} {checked} the {room}, the {furniture}, and even the {odd_spot}.*3"
        " | It wasn't {under} the {furniture} or in the {odd_spot}.*2"
    ),
    "checked": pick("checked*3 | searched*2"),
    "odd_spot": pick("toaster*3 | chimney*2 | mailbox*2 | soup*2 | canoe"),
    "helping": pick(
        "asking the cat*3 | making soup*2 | singing {softly}*3 | waving {softly}*2 | dancing {softly}*2"
        " | standing still*2"
    ),
    "hours": pick("minutes*3 | hours*4 | days*2 | cookies | naps*2"),
    "spotted": pick("spotted*3 | found*4"),
    "reunion": pick(
        "{@hero} {hugged} {@friend}, {pardoned} the {@animal}, and felt {glad}.*4"
        " | {@hero} felt {glad}, but the {@animal} {unmoved}.*3"
    ),
    "hugged": pick("hugged*4 | thanked*3"),
    "pardoned": pick("fed*3 | forgave*3 | admired*2"),
    "unmoved": pick("only {clapped}*3 | wanted a medal*3 | wasn't sorry*3 | wouldn't leave*2"),
}

# An animal moves in.
_FIND: dict[str, list[Option]] = {
    "find": pick(
        "{found} {a_being} {animal=animal} {under} {@hero.their} {furniture}."
        " It {guarded} {@hero.their} {lucky} {item=item}. {call} The {@animal} {ignored} the {@tool} and {clapped}."
        " {adoption}"
    ),
    "found": pick("found*3 | met*2"),
    "guarded": pick(
        "was guarding*3 | was hugging*2 | was sitting on*3 | was chewing*3 | had stolen*2 | wouldn't share*2"
    ),
    "call": pick(
        "{@hero.They} {called} {@hero.their} {relation} {friend=friend}, who {brought} {a_fine} {tool=tool}.*3"
        " | {@hero.Their} {relation} {friend=friend} {bravely} {brought} {a_fine} {tool=tool}.*2"
    ),
    "called": pick("called*4 | asked*2"),
    "bravely": pick("bravely*3 | quickly*3"),
    "ignored": pick("ignored*4 | studied*3 | admired*2 | tasted*2 | licked*2"),
    "adoption": pick(
        "{@hero} felt {glad}, kept the {@animal}, and named it {@friend}.*4"
        " | In the end, {@friend} kept the {@animal}, and {@hero} kept the {@tool}.*2"
        " | {@hero} got the {@item} back, {fed} the {@animal}, and felt {glad}.*3"
    ),
}

# A machine goes further than anybody thought.
_BUILD: dict[str, list[Option]] = {
    "build": pick(
        "built {a_fine} {craft=craft} out of {hue} {material=material}. {doubt} {maiden_trip} {applause}"
        " {@hero} felt {proud} and {next_time}"
    ),
    "craft": [
        *pick("boat*4 | canoe*3", do="float", did="floated", fate="fate_water"),
        *pick("plane*3 | kite*3 | rocket*3", do="fly", did="flew", fate="fate_air"),
        *pick("wagon*2 | bicycle*2", do="roll", did="rolled", fate="fate_land"),
        *pick("robot*3", do="walk", did="walked", fate="fate_land"),
    ],
    "material": pick("cardboard*4 | newspaper*3 | spoons*2 | pencils*2 | boxes*3 | umbrellas*2 | pillows*2 | books"),
    "doubt": pick(
        "{@hero.Their} {relation} {friend=friend} {said} it would never {@craft.do}.*3"
        " | Only {@hero.their} {relation} {friend=friend} {thought} it would {@craft.do}.*2"
    ),
    "said": pick("said*3 | bet*2 | swore*2 | whispered | joked*2"),
    "thought": pick("thought*3 | believed*3"),
    "maiden_trip": pick(
        "The {@craft} {@craft.did} for {number} {seconds} and then {*craft.fate}.*3"
        " | It {@craft.did} for {number} {seconds} and then {*craft.fate}.*2"
    ),
    "seconds": pick("seconds*3 | minutes*3 | feet*2 | hours"),
    "fate_water": pick("sank*3 | met {a_being} duck*3 | turned around*2 | gave up*2"),
    "fate_air": pick("hit a tree*3 | met {a_being} crow*3 | fell into a pond*3 | came home*2 | gave up*2"),
    "fate_land": pick("fell over*3 | met {a_being} goat*3 | hit a fence*3 | turned around*2 | gave up*2"),
    "applause": pick(
        "{@friend} {clapped} while {number} {audience} {watched}.*3"
        " | While {number} {audience} {watched}, {@friend} {clapped}.*2"
    ),
    "audience": pick("ducks*3 | cows*3 | tourists*3 | cats*2"),
    "watched": pick("watched*4 | stared*3 | clapped*2 | nodded*2"),
    "next_time": pick(
        "{planned} a {bigger} {@craft}.*4 | saved the {@material} for a {bigger} {@craft}.*2"
        " | gave {@friend} the {@craft}.*2"
    ),
    "planned": pick("planned*4 | started*2 | promised*2"),
    "bigger": pick("bigger*4 | stronger*2 | faster*3"),
}

# Music, and those who have to hear it.
_PRACTICE: dict[str, list[Option]] = {
    "practice": pick(
        "practiced {a_fine} {song} on {@hero.their} {lucky} {instrument=instrument}."
        " {nearby}, {a_being} {animal=animal} {began_to} {howl}."
        " {@hero.Their} {relation} {friend=friend} {hid} {covered_by} {number} {shelter=shelter}."
        " {@hero} {moved} the {@instrument} to the {room} and played {softly}. {encore}"
    ),
    "song": pick("waltz*3 | march*3 | lullaby*2 | song*3"),
    "instrument": pick("tuba*4 | trumpet*3 | violin*3 | guitar*2 | drum*2"),
    "began_to": pick("began to*3 | started to*2"),
    "howl": pick("howl*2 | dance*3 | weep*2 | sing*3"),
    "hid": pick("hid*4 | waited*2 | sat*2"),
    "covered_by": pick("under*3 | behind*2"),
    "shelter": pick("pillows*4 | blankets*3 | boxes*3 | umbrellas*3 | books*2"),
    "moved": pick("moved*3 | took*3 | carried*2"),
    "encore": pick(
        "Soon the {@animal} had {number} fans, and {@hero} felt {proud}.*3"
        " | In the end, {@friend} left the {@shelter}, {fed} the {@animal}, and felt {glad}.*2"
        " | The {@animal} {clapped}, and {@hero} felt {proud}.*2"
    ),
}

RULES: dict[str, list[Option]] = {
    **_OPENING,
    **_PEOPLE,
    **_SHARED,
    **_THIEF,
    **_BAKE,
    **_BORROW,
    **_BUY,
    **_LOSE,
    **_FIND,
    **_BUILD,
    **_PRACTICE,
}
